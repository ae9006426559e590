"""Visible GPUs: reads CUDA_VISIBLE_DEVICES as the CUDA driver does, within the GPUs of a container or job.

Sources: docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html (order, first invalid
entry, starts of UUIDs, CUDA_DEVICE_ORDER); pytorch/pytorch torch/cuda/__init__.py `_parse_visible_devices` and
test/test_cuda_nvml_based_avail.py, checked against driver 525.60.13 (pull 92315: duplicates, prefixes, signs, mixed
lists); docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html (MIG, before and since driver R570);
DataDog/datadog-agent pkg/gpu/cuda/env.go (where ordinals count GPUs in MIG mode).

A container or a job has some of the machine's GPUs; CUDA_VISIBLE_DEVICES selects some of these; and the script may
select some of those. HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES do not apply to NVIDIA's GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpuwatch.base.programs import is_worker
from gpuwatch.base.text import clean, mask
from gpuwatch.declared.facts import CVD, SHOWN, WITHIN, Facts, GpuFacts, MigFacts, Selection, Setting, Unread
from gpuwatch.declared.flags import find_program
from gpuwatch.model.snapshot import Confidence, Hint, Order, Visible

PCI_BUS_ID = "PCI_BUS_ID"
FASTEST_FIRST = "FASTEST_FIRST"

_BLANKS = " \t\n\v\f\r"
_NUMBER = r"([+-]?)([0-9]+)"
_VERSION = re.compile(r"[0-9]{3,4}(?=\.)")
# More digits than any count of GPUs has.
_MOST_DIGITS = 9
_SHOWN = 44  # a whole UUID

_ONE_INSTANCE = "drivers before R570 show only the first MIG instance, and no other GPU"
_SEVERAL_INSTANCES = 570
"""The first driver that shows several MIG instances. Source: docs.nvidia.com/datacenter/tesla/mig-user-guide,
"CUDA Device Enumeration"; github.com/pytorch/pytorch/pull/92315 shows it for two UUIDs and driver 525."""


class _Device(NamedTuple):
    """Device as CUDA counts them: a GPU or a MIG instance."""

    uuid: str
    gpu: GpuFacts
    instance: MigFacts | None = None
    note: str = ""
    """Note about an unusual notation of its name."""


def parse(value: str | None, gpus: Sequence[GpuFacts], order: str | None = None, *, driver: str = "") -> Visible:
    """Return the GPUs that CUDA_VISIBLE_DEVICES makes visible; `value` is None where it is not set. Never raises.

    `gpus` are the GPUs of its container or job, in NVML's order; `order` is its CUDA_DEVICE_ORDER; `driver` is the
    driver's version. The result has no `text` and no `where`. How many of several MIG instances are visible depends on
    the driver: where its version is not known the rules of R570 and later apply, and the note says so.
    """
    gpus = _sorted([gpu for gpu in gpus if gpu.uuid], order)
    notes: list[str] = []
    by_ordinal = value is None or not _kind(value)
    if value is None:  # whole GPUs, then one compute instance of each GPU instance
        parts = [_Device(part.uuid, gpu, part) for gpu in gpus if gpu.mig for part in gpu.slices]
        devices = _one_per_gpu_instance([_Device(gpu.uuid, gpu) for gpu in gpus if not gpu.mig] + parts, [])
    else:
        devices = _one_per_gpu_instance(_read_list(value.split(","), gpus, notes), notes)
    sure = order_certainty(gpus, order) if by_ordinal and devices else Order.EXACT
    if sure is Order.HEURISTIC and order and order != FASTEST_FIRST:
        notes.append(f"CUDA_DEVICE_ORDER={_excerpt(order)} is neither {FASTEST_FIRST} nor {PCI_BUS_ID}")
    notes += dict.fromkeys(device.note for device in devices if device.note)
    instances = [device for device in devices if device.instance]
    version = _VERSION.match(driver)
    if instances and len(devices) > 1 and (not version or int(version[0]) < _SEVERAL_INSTANCES):
        notes.append(_ONE_INSTANCE)
        devices = instances[:1] if version else devices
    return Visible(gpus=tuple(device.uuid for device in devices), order=sure, note="; ".join(notes))


def _sorted(gpus: list[GpuFacts], order: str | None) -> list[GpuFacts]:
    """Return GPUs in CUDA's order.

    Without PCI_BUS_ID different models are sorted by their speed, which is a guess. NVIDIA's guide has "fastest to
    slowest … using a simple heuristic", up to CUDA 10 only "make that device 0, leaving the order of the rest of the
    devices unspecified", and does not describe the heuristic. Within a generation the GPU with more cores was
    seen first (github.com/alephium/gpu-miner/issues/7), else the newer one (shootthesound/Fizgig/issues/104). Drivers
    of 2017 left the others in the order of their slots (ethereum-mining/ethminer/issues/283).
    """
    if order == PCI_BUS_ID and all(gpu.bus_id for gpu in gpus):
        return sorted(gpus, key=lambda gpu: gpu.bus_id.lower())
    gpus = sorted(gpus, key=lambda gpu: gpu.index)
    speeds = _speeds(gpus)
    return sorted(gpus, key=lambda gpu: speeds[gpu.name], reverse=True)


def _speeds(gpus: Sequence[GpuFacts]) -> dict[str, tuple[float, int]]:
    """Return the sort key of each model: its generation, then cores and clock, or memory where cores are unknown.

    All GPUs of a model have the same key, since their clocks may differ. Where there is only one model, or a generation
    is not known, all keys are equal.
    """
    known = all(gpu.capability is not None and gpu.name for gpu in gpus)
    counted = all(gpu.cores and gpu.clock for gpu in gpus)
    speeds = dict.fromkeys((gpu.name for gpu in gpus), (0.0, 0))
    if known and len(speeds) > 1:
        for gpu in gpus:
            size = (gpu.cores or 0) * (gpu.clock or 0) if counted else gpu.total or 0
            speeds[gpu.name] = max(speeds[gpu.name], (gpu.capability or 0.0, size))
    return speeds


def order_certainty(gpus: Sequence[GpuFacts], order: str | None) -> Order:
    """Return how certain it is which GPU an ordinal means."""
    if any(gpu.mig for gpu in gpus) and sum(len(gpu.slices) if gpu.mig else 1 for gpu in gpus) > 1:
        return Order.HEURISTIC
    if len(gpus) <= 1 or order == PCI_BUS_ID:
        return Order.EXACT
    names = {gpu.name for gpu in gpus}
    return Order.IDENTICAL if len(names) == 1 and "" not in names else Order.HEURISTIC


# -- devices that can be chosen ---------------------------------------------------------------------------------------


def _one_per_gpu_instance(devices: Sequence[_Device], notes: list[str]) -> list[_Device]:
    """Keep the first compute instance of each GPU instance: CUDA does not show a second one."""
    kept: dict[tuple[str, int], _Device] = {}
    for device in devices:
        key = (device.gpu.uuid, device.instance.gpu_instance if device.instance else -1)
        first = kept.setdefault(key, device)
        if first is not device:
            notes.append(
                f"{_excerpt(device.uuid)} is in the same GPU instance as {_excerpt(first.uuid)}: CUDA shows only one"
            )
    return list(kept.values())


def _first(gpu: GpuFacts) -> _Device:
    note = f"GPU {gpu.index} is in MIG mode: CUDA takes its first instance" if len(gpu.slices) > 1 else ""
    return _Device(gpu.slices[0].uuid, gpu, gpu.slices[0], note)


# -- the list ---------------------------------------------------------------------------------------------------------


def _read_list(entries: Sequence[str], gpus: Sequence[GpuFacts], notes: list[str]) -> list[_Device]:
    """Return the devices of a list up to its first invalid entry, none where one is named twice; append to `notes`."""
    devices: list[_Device] = []
    # Ordinals count whole GPUs first, then those in MIG mode by their first instance.
    counted = [_Device(gpu.uuid, gpu) for gpu in gpus if not gpu.mig]
    counted += [_first(gpu) for gpu in gpus if gpu.mig and gpu.slices]
    for place, entry in enumerate(entries):
        try:
            device = _device(entry, _kind(entries[0]), gpus, counted)
        except ValueError as error:
            last, text = place + 1 == len(entries), entry.strip(_BLANKS)
            if text == "-1":
                notes += [] if last else ["-1 hides all entries after it"]
            elif text or not last:  # a value that is empty, or ends with a comma, needs no note
                notes.append(f"{error}" if last else f"{error}, which hides all entries after it")
            break
        if any(device.uuid == other.uuid for other in devices):
            notes.append(f"{_excerpt(entry)} is listed twice, which hides every GPU")
            return []
        devices.append(device)
    return devices


def _kind(entry: str) -> str:
    """Return `GPU-` or `MIG-`, with which a UUID must begin (even a blank before it is wrong), else an empty text."""
    return entry[:4] if entry.startswith(("GPU-", "MIG-")) else ""


def _device(entry: str, kind: str, gpus: Sequence[GpuFacts], counted: Sequence[_Device]) -> _Device:
    """Return the device of an entry in a list of `kind`; raise ValueError where there is none."""
    if not kind:
        return _by_ordinal(entry, counted)
    if _kind(entry) != kind:
        raise _invalid(entry, f"is not allowed in a list of {'GPU' if kind == 'GPU-' else 'MIG'} UUIDs")
    if kind == "MIG-":
        parts = [_Device(part.uuid, gpu, part) for gpu in gpus if gpu.mig for part in gpu.slices]
        return _unique(entry, [one for one in parts if one.uuid.startswith(entry)])
    named = _unique(entry, [_Device(gpu.uuid, gpu) for gpu in gpus if gpu.uuid.startswith(entry)])
    if named.gpu.mig and not named.gpu.slices:
        raise ValueError(f"{_excerpt(entry)} is in MIG mode and has no instance")
    return _first(named.gpu) if named.gpu.mig else named


def _by_ordinal(entry: str, counted: Sequence[_Device]) -> _Device:
    """Return the device at an ordinal: the number at the start of the entry, in base 10, as strtoul reads it."""
    if _kind(entry):
        raise _invalid(entry, "is not allowed in a list of indices")
    number = re.match(_NUMBER, entry.strip(_BLANKS))
    digits = (number[2].lstrip("0") or "0") if number else ""
    if not number or (number[1] == "-" and digits != "0"):
        raise _invalid(entry, "is not a GPU")
    if len(digits) > _MOST_DIGITS or int(digits) >= len(counted):
        there = {0: "is none", 1: "is one"}.get(len(counted), f"are {len(counted)}")
        raise ValueError(f"{_excerpt(entry)} is not a GPU: there {there}")
    device = counted[int(digits)]
    if number.end() == len(entry.strip(_BLANKS)):
        return device
    return device._replace(note="; ".join(filter(None, (f"{_excerpt(entry)} is read as {number[0]}", device.note))))


def _unique(start: str, matches: Sequence[_Device]) -> _Device:
    """Return the only match; a UUID may be shortened as long as it is unique."""
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise _invalid(start, "is not a GPU")
    noun = "MIG instances" if matches[0].instance else "GPUs"
    raise ValueError(f"{_excerpt(start)} matches {'two' if len(matches) == 2 else len(matches)} {noun}")


def _invalid(entry: str, what: str) -> ValueError:
    text = entry.strip(_BLANKS)
    if not text:
        return ValueError("an entry is empty")
    if "'" in text or '"' in text:
        return ValueError(f"{_excerpt(text)} is not a GPU: the quotes are part of the value")
    space = ": there is a space next to it" if entry != text and _kind(text) else ""
    return ValueError(f"{_excerpt(text)} {what}{space}")


def _excerpt(entry: str) -> str:
    return mask(entry.strip(_BLANKS), _SHOWN)


ORDER = "CUDA_DEVICE_ORDER"
NVD = "NVIDIA_VISIBLE_DEVICES"
# The step's first: it is a part of the job's, and programs that srun starts have both.
SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")

# Sources: google/cadvisor container/*/factory.go, NVIDIA/dcgm-exporter internal/pkg/transformation/pidmapper.go.
_CONTAINER = re.compile(r"[0-9a-f]{64}|/docker[-/][0-9a-f]|kubepods|cri-containerd|crio-|libpod|/lxc[./]")
_POD = r"kubepods.*pod([0-9a-f_-]{8,})"
_LXC = r"/lxc(?:\.payload)?[./]([^/]+)"
# Source: slurm doc/html/cgroup_v2.shtml; from 26.05 on a job's directory is its SLUID.
_SLURM_JOB = re.compile(r"/job_[0-9]+(?:/|$)|/s[0-9A-Z]{13}/step_|slurmstepd")


class DeviceSet(NamedTuple):
    """Devices that a process can see."""

    visible: Visible | None
    """The visible devices; None where they are not known."""
    unselected: Visible | None = None
    """Visible devices before the script selects: TensorFlow's list_physical_devices counts these."""
    why: str = ""
    """Why they are not known; empty where they are."""


class TargetGpu(NamedTuple):
    """GPU or MIG instance that a candidate concerns."""

    gpu: str
    """UUID of the GPU; for a MIG instance that of its parent."""
    total: int | None
    """Memory of the GPU or the instance in bytes."""


class _Assigned(NamedTuple):
    """GPUs of a container or a job."""

    gpus: tuple[GpuFacts, ...]
    text: str = ""
    where: str = ""
    order: Order = Order.EXACT
    """Confidence that these are the right GPUs."""


_FROM_SURE = (Order.EXACT, Order.IDENTICAL, Order.HEURISTIC)
_INHERITED = "its own environment may differ"

# -- the set ----------------------------------------------------------------------------------------------------------


def device_set(
    settings: Mapping[str, Setting],
    selections: Sequence[Selection],
    frameworks: Collection[str] | None,
    facts: Facts,
    gpus: Sequence[GpuFacts],
    driver: str = "",
) -> DeviceSet:
    """Return the GPUs that a process sees, in order; never raises.

    `settings` are the variables of its environment and its script; `selections` are its script's selections among the
    visible GPUs; only those of the frameworks in use count (`frameworks` None: these are not known).
    """
    setting = settings.get(CVD)
    value = setting.value if setting else None
    if (setting is None or setting.where.startswith(_STARTED)) and (launcher := _find_launcher(settings, facts)):
        return DeviceSet(None, why=f"{launcher} sets {CVD} in its workers after they have started")
    if value is None and setting:
        return DeviceSet(None, why=_explain_missing(CVD, setting))
    if value is None and all(isinstance(one.environ, Unread) for one in (facts, *facts.ancestors)):
        return DeviceSet(None, why="its environment was not read")
    base = _assigned(settings, value, facts, gpus)
    if base is None:
        return DeviceSet(None, why="the GPUs of its container are not known")
    order = settings.get(ORDER)
    seen = parse(value, base.gpus, order.value if order else None, driver=driver)
    certainty = max(seen.order, base.order, key=_FROM_SURE.index) if seen.gpus else seen.order
    text, where, notes, doubt = base.text, base.where, [seen.note], ""
    if setting:
        text, where, doubt = _text(CVD, setting), _where(setting), _explain_doubt(setting)
        within = value and not _kind(value) and len(base.gpus) < len(gpus)
        notes += [f"{WITHIN} {base.text}" if within else "", doubt]
        certainty = Order.HEURISTIC if doubt not in ("", _INHERITED) else certainty
    seen = msgspec.structs.replace(
        seen, order=certainty, text=text, where=where, note="; ".join(filter(None, notes)), doubtful=bool(doubt)
    )
    return DeviceSet(_narrow(seen, selections, frameworks), seen)


_STARTED = "environment"
"""Beginning of the place of a variable that a process was started with."""
_NOSET = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"


def _find_launcher(settings: Mapping[str, Setting], facts: Facts) -> str:
    """Return the program that sets CUDA_VISIBLE_DEVICES in a process after its start; empty where its own counts.

    A program that such a worker starts has the worker's value in its own environment; a fork has what the worker was
    started with. Sources: ray/_private/accelerators/nvidia_gpu.py; distributed/nanny.py, `WorkerProcess._run`, which
    sets what dask_cuda/cuda_worker.py and local_cuda_cluster.py hand over.
    """
    noset = settings.get(_NOSET)
    for one in (facts, *facts.ancestors) if not noset or (noset.value or "").lower() not in ("1", "true") else ():
        title = one.argv[0] if one.argv else ""
        script = any(word.endswith("/default_worker.py") and "/ray/" in word for word in one.argv[:8])
        if script or title.startswith("ray::") or title.rpartition("/")[2] == "raylet":
            given = [None if isinstance(each.environ, Unread) else each.environ.get(CVD) for each in (facts, one)]
            return "Ray" if given[0] == given[1] else ""
    above = (find_program(relative.argv) for relative in facts.ancestors)
    nanny = any(one is not None and one.program.framework == "dask" for one in above)
    return "Dask-CUDA" if nanny or ("dask_cuda" in facts.contents.imports and is_worker(facts.argv)) else ""


def _explain_missing(name: str, setting: Setting) -> str:
    """Return why the value that a script gives a variable is not known."""
    if setting.removes:
        return f"{_where(setting)} removes {name}, before or after CUDA has started"
    if setting.condition:
        return f"{_where(setting)} sets {name} {setting.condition}"
    return f"{_where(setting)} sets {name} to a value known only at run time"


def _explain_doubt(setting: Setting) -> str:
    """Return why a setting may not be in effect; empty where it is."""
    return {
        Confidence.CERTAIN: "",
        Confidence.LIKELY: "" if setting.line else _INHERITED,
        Confidence.STALE: "the file was changed after the process started",
    }.get(setting.confidence, "it may not be in effect")


def find_hints(settings: Mapping[str, Setting]) -> Iterator[Hint]:
    """Return hints about variables that choose GPUs, and whose value is not known or has no effect."""
    if (order := settings.get(ORDER)) and order.value is None:
        yield Hint(rule="dynamic", words=_explain_missing(ORDER, order))
    if (given := settings.get(NVD)) and given.line:
        words = f"{NVD} has no effect on a running process ({_where(given)}); {CVD} has"
        yield Hint(rule="no effect", words=words)


def _text(name: str, setting: Setting) -> str:
    return mask(f"{name}={setting.value}", SHOWN)


def _where(said: Setting | Selection) -> str:
    return clean(f"{said.where}:{said.line}" if said.line else said.where)


# -- GPUs of the container or the job ---------------------------------------------------------------------------------


def container(cgroup: str) -> str:
    """Return the id (64 digits) of the innermost container in a cgroup path; empty where there is none.

    Where the path has no such id, return the uid of a Kubernetes pod, or LXC's name.
    """
    if ids := re.findall("[0-9a-f]{64}", cgroup):
        return str(ids[-1])
    if pod := re.search(_POD, cgroup):
        return pod[1].replace("_", "-")
    lxc = re.search(_LXC, cgroup)
    return clean(lxc[1], SHOWN) if lxc else ""


def _assigned(
    settings: Mapping[str, Setting], value: str | None, facts: Facts, gpus: Sequence[GpuFacts]
) -> _Assigned | None:
    """Return the GPUs that the ordinals of CUDA_VISIBLE_DEVICES count; None where they are not known."""
    setting = settings.get(NVD)
    # What a script sets comes too late for the container's runtime.
    given = setting.value.strip() if setting and setting.value and not setting.line else ""
    in_container = bool(facts.container or _CONTAINER.search(facts.cgroup) or (facts.cgroup == "/" and given))
    # Elsewhere the variable is often just set, and means nothing; a UUID, though, was put there by a scheduler.
    if setting and (in_container or _kind(given)):
        found = _read_assigned(given, gpus)
        if found is not None:
            return _Assigned(found, _text(NVD, setting), _where(setting))
    if in_container:  # whose GPUs do not matter where there is one only, or the value means no ordinal
        no_ordinal = value is not None and (not value.strip() or _kind(value) or value.startswith("-1"))
        return _Assigned(tuple(gpus)) if no_ordinal or (len(gpus) == 1 and not gpus[0].mig) else None
    return _slurm(settings, value, facts.cgroup, gpus) or _Assigned(tuple(gpus))


def _read_assigned(value: str, gpus: Sequence[GpuFacts]) -> tuple[GpuFacts, ...] | None:
    """Read NVIDIA_VISIBLE_DEVICES; None where it has no meaning (`void`, empty) or names a missing GPU.

    `all`, `none`, or a list of indices as nvidia-smi has them, UUIDs, `0:0` for a GPU's MIG instance, and CDI names
    (`nvidia.com/gpu=0`). Source: NVIDIA/nvidia-container-toolkit cmd/nvidia-container-runtime/README.md.
    """
    if value in ("", "void"):
        return None
    if value == "none":
        return ()
    chosen: dict[str, set[str]] = {}
    for entry in value.split(","):
        name = entry.strip().rpartition("=")[2]
        if name == "all":
            return tuple(gpus)
        named = _find_assigned(name, gpus)
        if named is None:
            return None
        gpu, parts = named
        chosen.setdefault(gpu.uuid, set()).update(part.uuid for part in parts)
    return tuple(
        msgspec.structs.replace(gpu, slices=tuple(part for part in gpu.slices if part.uuid in chosen[gpu.uuid]))
        for gpu in gpus
        if gpu.uuid in chosen
    )


def _find_assigned(name: str, gpus: Sequence[GpuFacts]) -> tuple[GpuFacts, Sequence[MigFacts]] | None:
    """Return the GPU that a container runtime calls `name`, and the MIG instances of it that are meant."""
    if name.startswith("MIG-"):
        seen = parse(name, gpus).gpus
        return next(((gpu, [part]) for gpu in gpus for part in gpu.slices if part.uuid in seen), None)
    if name.startswith("GPU-"):
        matches = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
        return (matches[0], matches[0].slices) if len(matches) == 1 else None
    index, colon, instance = name.removeprefix("gpu").removeprefix("mig").partition(":")
    gpu = next((gpu for gpu in gpus if str(gpu.index) == index), None)
    if gpu is None or not colon:
        return (gpu, gpu.slices) if gpu else None
    parts = [part for place, part in enumerate(gpu.slices) if str(place) == instance]
    return (gpu, parts) if parts else None


def _slurm(
    settings: Mapping[str, Setting], value: str | None, cgroup: str, gpus: Sequence[GpuFacts]
) -> _Assigned | None:
    """Return the GPUs of a Slurm job, which its CUDA_VISIBLE_DEVICES counts where Slurm constrains devices.

    Source: slurm doc/html/gres.shtml and doc/man/man1/sbatch.1: SLURM_JOB_GPUS and SLURM_STEP_GPUS are global ids.
    These ids follow gres.conf, and may differ from NVML's: only on identical GPUs that makes no difference.
    """
    if _kind(value or "") or (cgroup not in ("", "/") and not _SLURM_JOB.search(cgroup)):
        return None
    name = next((name for name in SLURM if (one := settings.get(name)) and one.value and not one.line), None)
    assigned = _read_assigned(settings[name].value or "", gpus) if name else None
    if name is None or not assigned:
        return None
    ordinals = [entry.strip() for entry in (value or "").split(",")]
    beyond = any(entry.isdecimal() and len(entry) <= _MOST_DIGITS and int(entry) >= len(assigned) for entry in ordinals)
    if beyond and {str(gpu.index) for gpu in assigned}.issuperset(ordinals):
        return None  # They are global ids too: Slurm does not constrain devices here.
    by_id = "GPU-" not in (settings[name].value or "")
    certainty = order_certainty(gpus, None) if by_id else Order.EXACT
    return _Assigned(assigned, _text(name, settings[name]), _where(settings[name]), certainty)


# -- selections of the script -----------------------------------------------------------------------------------------


def _narrow(seen: Visible, selections: Sequence[Selection], frameworks: Collection[str] | None) -> Visible:
    """Reduce the visible GPUs to those that the frameworks in use selected, unless one of them uses all.

    Of each framework the last selection counts. `set_visible_devices([], "GPU")` in a program that uses JAX for its GPU
    work must not hide JAX's GPUs.
    """
    last = {one.framework: one for one in selections}
    using = [last[name] for name in last if frameworks is None or name in frameworks]
    if not using or (frameworks is not None and not last.keys() >= set(frameworks)):
        return seen
    said = {"text": clean(using[-1].text or using[-1].channel, SHOWN), "where": _where(using[-1])}
    if any(one.ordinals is None for one in using):
        note = "; ".join(filter(None, (seen.note, "its script chooses among them at run time")))
        return msgspec.structs.replace(seen, order=Order.HEURISTIC, note=note, **said)
    chosen = list(dict.fromkeys(ordinal for one in using for ordinal in one.ordinals or ()))
    gpus = tuple(seen.gpus[ordinal] for ordinal in chosen if 0 <= ordinal < len(seen.gpus))
    if not gpus and (frameworks is None or chosen):
        return seen  # Another framework may be using them; or the choice failed, and it sees all.
    return msgspec.structs.replace(seen, gpus=gpus, **said)


# -- GPUs of a candidate ----------------------------------------------------------------------------------------------


def targets(device: int | str | None, visible: Visible | None, gpus: Sequence[GpuFacts]) -> tuple[TargetGpu, ...]:
    """Return the GPUs that a candidate about `device` (`facts.Candidate.device`) concerns; never raises.

    None means every visible GPU; where these are not known, or only guessed, every GPU, since a limit for each GPU
    holds for the right one too. A number counts the visible GPUs; a text is a UUID or the unique start of one.
    """
    everything = [(gpu.uuid, TargetGpu(gpu.uuid, gpu.total)) for gpu in gpus]
    parts = [(part.uuid, TargetGpu(gpu.uuid, part.total)) for gpu in gpus for part in gpu.slices]
    if isinstance(device, str):
        named = [target for uuid, target in everything + parts if device and uuid.startswith(device)]
        return tuple(named) if len(named) == 1 else ()
    by_uuid = dict(everything + parts)
    seen = [by_uuid[uuid] for uuid in visible.gpus if uuid in by_uuid] if visible else []
    if device is not None:
        return (seen[device],) if 0 <= device < len(seen) else ()
    guessed = visible is None or visible.order is Order.HEURISTIC
    if guessed and {target.gpu for target in seen} != {gpu.uuid for gpu in gpus}:
        return tuple(target for _, target in everything)
    return tuple(seen)
