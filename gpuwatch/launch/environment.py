"""Environment of a launched program: sets its share in the variables that each framework reads.

PyTorch reads the key `per_process_memory_fraction` of PYTORCH_CUDA_ALLOC_CONF from 2.10.0 on; 2.9.1 and older end with
"Unrecognized CachingAllocator option" at the first use of CUDA. A header in every wheel shows whether the key is known.
Source: c10/cuda/CUDAAllocatorConfig.h of both; https://github.com/pytorch/pytorch/pull/161035.

A variable that the user set is kept, unless it asks for more than the share; messages report both. Limits that no
variable can set (TensorFlow's fraction, Theano, servers with their own flags) are left to the user.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpuwatch.base import files
from gpuwatch.base.text import clean
from gpuwatch.base.units import MIB
from gpuwatch.declared.env import candidates
from gpuwatch.declared.facts import Setting
from gpuwatch.declared.sizes import mps

KEY = "per_process_memory_fraction"

_HEADER = Path("include/c10/cuda/CUDAAllocatorConfig.h")

_PYTHON = re.compile(r"python[0-9.]*t?")

_LONGEST_HEADER = 1 << 20
_LONGEST_SHEBANG = 256
"""Bytes of a shebang line, at most: BINPRM_BUF_SIZE of Linux."""
_LONGEST_SETTINGS = 1 << 16


def torch_obstacle(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return why the key cannot be given to a command's PyTorch; empty where each PyTorch that it may import knows it.

    The command must be a Python interpreter, or a script that names one in its first line (torchrun); the programs of
    a shell script cannot be known.
    """
    python = interpreter(command[0], environ)
    if python is None:
        return f"it is not known which Python {Path(command[0]).name} runs"
    found = [folder for folder in _packages(python, environ) if (folder / "torch").is_dir()]
    if not found:
        return f"{python} has no PyTorch"
    for folder in found:
        try:
            with open(files.open_ordinary(folder / "torch" / _HEADER), "rb") as header:
                knows = KEY.encode() in header.read(_LONGEST_HEADER)
        except OSError:
            return f"it is not known whether {folder}/torch knows {KEY}"
        if not knows:
            return f"{folder}/torch is older than 2.10, which rejects {KEY}"
    return ""


def interpreter(program: str, environ: Mapping[str, str]) -> Path | None:
    """Return the Python interpreter of a program, with links unresolved, as a venv needs it; None where it has none."""
    for _ in range(2):  # a script, then what its first line names
        place = shutil.which(program, path=environ.get("PATH", os.defpath))
        if place is None:
            return None
        if _PYTHON.fullmatch(Path(place).name):
            return Path(place).absolute()
        program = _shebang(Path(place))
        if not program:
            return None
    return None


def _shebang(script: Path) -> str:
    """Return the program in the first line of a script, also after `env`; empty where there is none."""
    try:
        with open(files.open_ordinary(script), "rb") as file:
            line = file.read(_LONGEST_SHEBANG).partition(b"\n")[0]
    except OSError:
        return ""
    if not line.startswith(b"#!"):
        return ""
    parts = os.fsdecode(line[2:]).split()
    if parts and Path(parts[0]).name == "env":
        parts = [word for word in parts[1:] if not word.startswith("-") and "=" not in word]
    return parts[0] if parts else ""


def _packages(python: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Return the folders that an interpreter may import from: PYTHONPATH, the user's, the venv's, the system's."""
    for entry in environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry:
            yield Path(entry)
    prefixes = [python.parent.parent, _home(python)]
    if home := environ.get("HOME"):
        prefixes.insert(0, Path(home, ".local"))
    for prefix in dict.fromkeys(prefix for prefix in prefixes if prefix):
        for library in ("lib", "lib64", "local/lib"):
            for version in sorted((prefix / library).glob("python3*")):
                for packages in ("site-packages", "dist-packages"):
                    yield version / packages


def _home(python: Path) -> Path | None:
    """Return the prefix of the base interpreter of a venv that also uses its packages; None for other venvs."""
    try:
        with open(files.open_ordinary(python.parent.parent / "pyvenv.cfg"), "rb") as file:
            settings = file.read(_LONGEST_SETTINGS).decode("utf-8", "replace")
    except OSError:
        return None
    if not re.search(r"^include-system-site-packages\s*=\s*true", settings, re.MULTILINE | re.IGNORECASE):
        return None
    home = re.search(r"^home\s*=\s*(\S.*)$", settings, re.MULTILINE)
    return Path(home[1].strip()).parent if home else None


_MPS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

_PRECISION = 10_000
"""A fraction has four digits, rounded down: 8 MiB of an 80 GiB GPU."""


class Allocation(NamedTuple):
    """Memory that a program may take on each of its GPUs."""

    gpus: Sequence[str]
    """UUIDs of the GPUs, in the order in which the program numbers them."""
    amounts: Sequence[int]
    """Bytes that it may take on each of them."""
    wholes: Sequence[int]
    """Bytes of each GPU that programs can have: the total that CUDA reports."""
    share: float | None
    """The requested share; None where bytes were requested."""

    @property
    def fraction(self) -> float:
        """The requested share; where bytes were requested, the smallest fraction that they are of any of the GPUs."""
        if self.share is not None:
            return self.share
        least = min(amount / whole for amount, whole in zip(self.amounts, self.wholes, strict=True))
        return max(1, math.floor(least * _PRECISION)) / _PRECISION

    @property
    def bytes(self) -> int:
        """Bytes that are within the share on each GPU."""
        return min(self.amounts)


class VariableChange(NamedTuple):
    """Change of one environment variable, or the reason why it stays unchanged."""

    name: str
    value: str | None
    """New value; None where the variable stays unchanged."""
    note: str
    """Framework that reads the variable, and whether the user's value is kept."""


def changes(allocation: Allocation, environ: Mapping[str, str], *, torch: str) -> Iterator[VariableChange]:
    """Return the changes of an environment, and the variables that stay, with reasons.

    `torch` says why PyTorch's variable must not be set (see `torch_obstacle`); empty where it may.
    """
    variables = list(_changes(allocation, environ, torch))
    after = {**environ, **{one.name: one.value for one in variables if one.value is not None}}
    void = {
        candidate.channel: candidate.void
        for candidate in candidates({name: Setting(value=after[name]) for name in after})
    }
    for one in variables:
        yield one._replace(note="; ".join(filter(None, (one.note, void.get(one.name)))))


def _changes(allocation: Allocation, environ: Mapping[str, str], torch: str) -> Iterator[VariableChange]:
    yield from _set("CUDA_VISIBLE_DEVICES", ",".join(allocation.gpus), "", environ)
    yield from _set("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "", environ)
    fraction = _decimal(allocation.fraction)
    size = f"{allocation.bytes // MIB}MiB" if allocation.bytes % MIB == 0 else f"{allocation.bytes}B"
    yield from _set("GPUWATCH_SHARE", fraction if allocation.share is not None else size, "", environ)
    # jax knows both names and refuses to start where both are set; old versions know only the second one.
    # Source: jaxlib/xla_client.py, generate_pjrt_gpu_plugin_options.
    name = "XLA_CLIENT_MEM_FRACTION" if environ.get("XLA_CLIENT_MEM_FRACTION") else "XLA_PYTHON_CLIENT_MEM_FRACTION"
    yield _set_limit(name, fraction, "JAX", environ, lambda text: float(text) <= allocation.fraction)
    yield _torch(allocation, environ, torch)
    # cupy/cuda/memory.pyx: a percentage of the GPU's memory, or bytes.
    percent = f"{100 * allocation.fraction:.10g}%"
    cupy = percent if allocation.share is not None else str(allocation.bytes)
    yield _set_limit("CUPY_GPU_MEMORY_LIMIT", cupy, "CuPy", environ, lambda text: _cupy(text, allocation))
    # paddle/phi/core/platform/device/gpu/gpu_info.cc, RecordedGpuMallocHelper: MiB, 0 for none.
    megabytes = max(1, allocation.bytes // MIB)
    name = "FLAGS_gpu_memory_limit_mb"
    yield _set_limit(name, str(megabytes), "Paddle", environ, lambda text: 0 < int(text) <= megabytes)
    # gpu_bfc_allocator.cc: TensorFlow takes no fraction from the environment, and else nearly all memory.
    if name := environ.get("TF_FORCE_GPU_ALLOW_GROWTH", ""):
        yield VariableChange("TF_FORCE_GPU_ALLOW_GROWTH", None, f"TensorFlow; left at {_shown(name)}")
    else:
        yield VariableChange(
            "TF_FORCE_GPU_ALLOW_GROWTH", "true", "TensorFlow, which reads no limit from the environment"
        )
    if _mps_runs(environ):
        yield from _set(
            _MPS, _mps_limits(allocation, environ.get(_MPS, "")), "the MPS server, which enforces it", environ
        )


def _decimal(fraction: float) -> str:
    """Return a fraction with nine digits and no exponent, which every framework can read."""
    return f"{max(fraction, 1e-9):.9f}".rstrip("0").rstrip(".")


def _set(name: str, value: str, whose: str, environ: Mapping[str, str]) -> Iterator[VariableChange]:
    """Set a variable, whatever its old value."""
    before = environ.get(name)
    was = f"was {_shown(before)}" if before not in (None, value) else ""
    yield VariableChange(name, value, "; ".join(filter(None, (whose, was))))


def _set_limit(
    name: str, value: str, whose: str, environ: Mapping[str, str], within: Callable[[str], bool]
) -> VariableChange:
    """Set a limit, unless the user's own limit is as low."""
    before = environ.get(name, "").strip()
    if not before or before == value:
        return VariableChange(name, value, whose)
    try:
        keep = within(before)
    except ValueError:
        return VariableChange(name, None, f"{whose}; left at {_shown(before)}, which is not a number")
    if keep:
        return VariableChange(name, None, f"{whose}; left at {_shown(before)}, which is no more than the share")
    return VariableChange(name, value, f"{whose}; was {_shown(before)}, which is more than the share")


def _cupy(text: str, allocation: Allocation) -> bool:
    if text.endswith("%"):
        return 0 < float(text[:-1]) / 100 <= allocation.fraction
    return 0 < int(text) <= allocation.bytes


def _torch(allocation: Allocation, environ: Mapping[str, str], torch_obstacle: str) -> VariableChange:
    """Add the share to PyTorch's settings and keep the other entries.

    CUDA's settings come from PYTORCH_CUDA_ALLOC_CONF, and only without it from PYTORCH_ALLOC_CONF.
    Source: c10/cuda/CUDAAllocatorConfig.h, instance().
    """
    name = "PYTORCH_CUDA_ALLOC_CONF"
    if name not in environ and environ.get("PYTORCH_ALLOC_CONF"):
        name = "PYTORCH_ALLOC_CONF"
    entries = [entry.strip() for entry in environ.get(name, "").split(",") if entry.strip()]
    given = [entry for entry in entries if entry.partition(":")[0].strip() == KEY]
    before = given[-1].partition(":")[2] if given else ""
    limit = _set_limit(
        KEY, _decimal(allocation.fraction), "PyTorch", {KEY: before}, lambda text: float(text) <= allocation.fraction
    )
    if limit.value is None:
        return VariableChange(name, None, limit.note)
    if torch_obstacle:
        return VariableChange(name, None, f"no limit for PyTorch: {clean(torch_obstacle)}")
    # An entry like round:[1:2,3:4] is cut at its commas above and put together again here.
    others = [entry for entry in entries if entry not in given]
    return VariableChange(name, ",".join([*others, f"{KEY}:{limit.value}"]), limit.note)


def _mps_limits(allocation: Allocation, before: str) -> str:
    """Return the limit of each GPU by ordinal: the share, or the user's own where that is lower."""
    least: dict[int | str, float] = {}
    for entry in before.strip(" '\"").split(","):
        with contextlib.suppress(ValueError):  # an entry that the server would not accept either
            least |= {size.device: size.value for size in mps(entry) if size.value and size.device is not None}
    limits = []
    for place, (uuid, amount) in enumerate(zip(allocation.gpus, allocation.amounts, strict=True)):
        bytes_ = min(amount, least.get(place, amount), least.get(uuid, amount))
        limits.append(f"{place}={max(1, int(bytes_) // MIB)}M")
    return ",".join(limits)


def _mps_runs(environ: Mapping[str, str]) -> bool:
    """Return whether a client can reach an MPS control daemon; without one the limit is ignored.

    Source: docs.nvidia.com/deploy/mps, "CUDA_MPS_PIPE_DIRECTORY".
    """
    control = Path(environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps", "control")
    try:
        mode = control.stat().st_mode
    except OSError:  # no daemon, or one of another user
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


def _shown(value: str | None) -> str:
    return clean(value or "", 80) or "nothing"
