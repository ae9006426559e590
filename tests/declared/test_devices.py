"""Which GPUs a process sees by its container, its job, its environment and its script; and targets of candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuwatch.declared.facts import Facts, GpuFacts, RelatedProcess, Selection, Setting, Unread
from gpuwatch.declared.visible_devices import (
    NVD,
    ORDER,
    DeviceSet,
    TargetGpu,
    container,
    device_set,
    find_hints,
    targets,
)
from gpuwatch.model.snapshot import Order, Visible
from tests.declared.machines import MIXED, A, B, D, gpu, part
from tests.declared.tables import Case, cases
from tests.support.builders import GIB, MIB

DOCKER = "/system.slice/docker-" + "3f9a1c" * 10 + "abcd.scope"
POD = "/kubepods.slice/kubepods-burstable-pod1d_2.slice/cri-containerd-" + "0" * 64 + ".scope"
SLURM = "/system.slice/slurmstepd.scope/job_3385/step_0/user/task_0"
SESSION = "/user.slice/user-1000.slice/session-4.scope"


def facts(cgroup: str = SESSION, environ: Mapping[str, str] | Unread | None = None, *parents: RelatedProcess) -> Facts:
    """Return the facts of a process whose environment could be read, unless a reason is given why not."""
    return Facts(pid=1, cgroup=cgroup, environ={} if environ is None else environ, ancestors=parents)


def resolved(
    environment: Mapping[str, str] | None = None,
    *,
    gpus: Sequence[GpuFacts] = A,
    cgroup: str = SESSION,
    container: str = "",
    script: Mapping[str, str | None] | None = None,
    selections: Sequence[Selection] = (),
    frameworks: Sequence[str] | None = None,
) -> DeviceSet:
    """Resolve what a process with this environment sees; `script` is what its line 3 sets, None for at run time."""
    settings = {name: Setting(value=value) for name, value in (environment or {}).items()}
    for name, value in (script or {}).items():
        settings[name] = Setting(value=value, where="train.py", line=3, text=f'os.environ["{name}"] = …')
    return device_set(settings, selections, frameworks, replace(facts(cgroup), container=container), gpus)


def indices(visible: Visible | None, gpus: Sequence[GpuFacts] = A) -> list[int | str] | None:
    """Give NVML indices of the GPUs, UUIDs of instances; None where nothing is known."""
    index = {one.uuid: one.index for one in gpus}
    return None if visible is None else [index.get(uuid, uuid) for uuid in visible.gpus]


def choice(*ordinals: int, framework: str = "tensorflow", line: int = 7) -> Selection:
    text = f"set_visible_devices{ordinals}"
    return Selection(
        channel="set_visible_devices", framework=framework, ordinals=ordinals, where="train.py", line=line, text=text
    )


AT_RUN_TIME = Selection(channel="visible_device_list", framework="tensorflow", ordinals=None, where="train.py", line=9)

MACHINES = {"A": A, "A1": A[:1], "B": B, "D": D, "MIXED": MIXED}
"""Those of `machines`; A1 is one gpu."""
CGROUPS = {"docker": DOCKER, "pod": POD, "slurm": SLURM, "session": SESSION}
"""Names of cgroups in the table; any other text is a cgroup itself."""


@cases("declared/devices")
def test_what_a_process_sees(case: Case) -> None:
    """`sees` has NVML indices of whole GPUs and UUIDs of instances, None where nothing is known."""
    machine, cgroup = MACHINES[case.get("cards", "A")], str(case["cgroup"])
    result = resolved(
        case["environ"],
        gpus=machine,
        cgroup=CGROUPS.get(cgroup, cgroup),
        container=case.get("container", ""),
        selections=[choice(*ordinals, framework=framework) for framework, ordinals in case.get("chooses", ())],
        frameworks=case.get("frameworks"),
    )
    visible = result.visible
    found = {key: getattr(visible, key, None) for key in ("order", "text", "note", "where")}
    found["sees"] = indices(visible, machine)
    assert {key: found[key] for key in case["expect"]} == case["expect"]
    assert result.unselected == visible or visible is None or visible.where == "train.py:7"


@pytest.mark.parametrize(
    ("environ", "parents", "expected"),
    [
        (Unread.DENIED, (), None),
        (Unread.OVERWRITTEN, (RelatedProcess(pid=2), RelatedProcess(pid=3)), None),
        (Unread.OVERWRITTEN, (RelatedProcess(pid=2), RelatedProcess(pid=3, environ={})), [0, 1, 2, 3]),
        ({}, (RelatedProcess(pid=2),), [0, 1, 2, 3]),
    ],
)
def test_what_could_not_be_read_is_not_unset(
    environ: Mapping[str, str] | Unread, parents: tuple[RelatedProcess, ...], expected: list[int] | None
) -> None:
    known = facts(SESSION, environ, *parents)
    assert indices(device_set({}, (), None, known, A).visible) == expected
    told = {"CUDA_VISIBLE_DEVICES": Setting(value="1", where="train.py", line=3)}
    assert indices(device_set(told, (), None, known, A).visible) == [1]


def test_what_is_shown_of_a_value_is_cleaned_and_short() -> None:
    visible = resolved({"CUDA_VISIBLE_DEVICES": "0\x1b[31m," + "1" * 500}).visible
    assert visible is not None
    assert visible.text.startswith("CUDA_VISIBLE_DEVICES=0\N{REPLACEMENT CHARACTER}[31m")
    assert len(visible.text) == 80
    assert (visible.text + visible.note).isprintable()


HEX = "3f9a1c" * 10 + "abcd"


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f"/docker/{HEX}", HEX),
        (f"/system.slice/docker-{HEX}.scope", HEX),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{HEX}.scope/container", HEX),
        (f"/kubepods/burstable/pod0b81c8f3-2a6e/{HEX}", HEX),
        (f"/kubepods.slice/kubepods-burstable.slice/crio-{HEX}.scope", HEX),
        (f"/docker/{'0' * 64}/docker/{HEX}", HEX),
        ("/kubepods.slice/kubepods-besteffort-pod0b81c8f3_2a6e_4b2e.slice", "0b81c8f3-2a6e-4b2e"),
        ("/lxc/web/system.slice", "web"),
        ("/lxc.payload.web/init.scope", "web"),
        ("/", ""),
        ("", ""),
        (SESSION, ""),
        (SLURM, ""),
        ("/system.slice/docker.service", ""),
    ],
)
def test_a_container_is_known_by_its_cgroup(cgroup: str, expected: str) -> None:
    assert container(cgroup) == expected


def test_what_the_script_sets_replaces_the_environment_s_and_says_where() -> None:
    result = resolved({"CUDA_VISIBLE_DEVICES": "0,1"}, script={"CUDA_VISIBLE_DEVICES": "2"})
    assert indices(result.visible) == [2]
    assert result.visible is not None
    assert (result.visible.text, result.visible.where) == ("CUDA_VISIBLE_DEVICES=2", "train.py:3")


def test_what_is_set_at_run_time_is_not_known() -> None:
    result = resolved({"CUDA_VISIBLE_DEVICES": "0,1"}, script={"CUDA_VISIBLE_DEVICES": None})
    assert result.visible is None
    assert result.why.startswith("train.py:3 sets CUDA_VISIBLE_DEVICES ")


def test_an_order_set_at_run_time_leaves_the_ordinals_unsure() -> None:
    result = resolved({"CUDA_VISIBLE_DEVICES": "0"}, gpus=B, script={"CUDA_DEVICE_ORDER": None})
    assert result.visible is not None
    assert result.visible.order is Order.HEURISTIC
    assert [hint.rule for hint in find_hints({ORDER: Setting(value=None)})] == ["dynamic"]


@pytest.mark.parametrize("cgroup", [SESSION, "/", SLURM])
def test_a_script_cannot_set_what_its_container_was_given(cgroup: str) -> None:
    result = resolved(cgroup=cgroup, script={"NVIDIA_VISIBLE_DEVICES": "GPU-aaaa0001", "SLURM_JOB_GPUS": "2"})
    assert indices(result.visible) == [0, 1, 2, 3]
    (hint,) = find_hints({NVD: Setting(value="0", where="train.py", line=3)})
    assert (hint.rule, "train.py:3" in hint.words) == ("no effect", True)


def test_a_choice_at_run_time_leaves_the_set_and_is_said() -> None:
    result = resolved({"CUDA_VISIBLE_DEVICES": "2,3"}, selections=[choice(0), AT_RUN_TIME], frameworks=["tensorflow"])
    assert indices(result.visible) == [2, 3]
    assert result.visible is not None
    assert result.visible.order is Order.HEURISTIC
    assert "at run time" in result.visible.note
    assert (result.visible.text, result.visible.where) == ("visible_device_list", "train.py:9")
    odd = resolved({"CUDA_VISIBLE_DEVICES": "2,"}, selections=[AT_RUN_TIME])
    assert odd.visible is not None
    assert "at run time" in odd.visible.note


def all_of(gpus: Sequence[GpuFacts]) -> tuple[TargetGpu, ...]:
    return tuple(TargetGpu(one.uuid, one.total) for one in gpus)


def visible(*gpus: str, order: Order = Order.EXACT) -> Visible:
    return Visible(gpus=gpus, order=order)


LOW, HIGH = "GPU-bbbb0002", "GPU-dddd0004"


@pytest.mark.parametrize(
    ("device", "seen", "expected"),
    [
        (None, visible(HIGH, LOW), [3, 1]),
        (None, visible(), []),
        (None, None, [0, 1, 2, 3]),
        (None, visible(LOW, order=Order.IDENTICAL), [1]),
        (None, visible(LOW, order=Order.HEURISTIC), [0, 1, 2, 3]),
        (None, visible(HIGH, LOW, "GPU-aaaa0001", "GPU-bbcc0003", order=Order.HEURISTIC), [3, 1, 0, 2]),
        (0, visible(HIGH, LOW), [3]),
        (1, visible(HIGH, LOW), [1]),
        (2, visible(HIGH, LOW), []),
        (-1, visible(HIGH, LOW), []),
        (0, visible(), []),
        (0, None, []),
        (1, visible(LOW, HIGH, order=Order.HEURISTIC), [3]),
        (HIGH, None, [3]),
        ("GPU-a", visible(HIGH), [0]),
        ("GPU-b", visible(HIGH), []),
        ("GPU-f", visible(HIGH), []),
        ("", visible(HIGH), []),
        (None, visible("GPU-gone"), []),
    ],
)
def test_which_gpus_a_candidate_concerns(device: int | str | None, seen: Visible | None, expected: list[int]) -> None:
    assert targets(device, seen, A) == tuple(all_of(A)[index] for index in expected)


def test_a_mig_instance_is_a_part_of_its_gpu_with_its_own_size() -> None:
    half = TargetGpu("GPU-aaaa0001", 10 * GIB)
    assert targets(None, visible("MIG-2222"), D) == (half,)
    assert targets(0, visible("MIG-2222"), D) == (half,)
    assert targets("MIG-2", None, D) == (half,)
    assert targets(None, visible("MIG-1111", "MIG-2222", order=Order.HEURISTIC), D) == (half, half)
    assert targets(None, None, D) == (TargetGpu("GPU-aaaa0001", 11019 * MIB),)


def test_a_size_that_is_not_known_stays_unknown() -> None:
    gpus = [gpu(0, "GPU-a", total=None), gpu(1, "GPU-b", mig=True, slices=(part("MIG-1", 1),))]
    assert targets(0, visible("GPU-a"), gpus) == (TargetGpu("GPU-a", None),)


VALUES = st.none() | st.text(max_size=12) | st.sampled_from(["0", "1,0", "-1", "GPU-a", "all", "void", "0:1", "MIG-1"])
NAMES = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"]
SETTINGS = st.builds(Setting, value=VALUES, where=st.text(max_size=6), line=st.integers(0, 2))
CHOICES = st.builds(
    Selection,
    channel=st.text(max_size=4),
    framework=st.sampled_from(["tensorflow", "jax"]),
    ordinals=st.none() | st.lists(st.integers(-2, 9), max_size=3).map(tuple),
)


@given(
    settings=st.dictionaries(st.sampled_from(NAMES), SETTINGS),
    selections=st.lists(CHOICES, max_size=3),
    frameworks=st.none() | st.lists(st.sampled_from(["tensorflow", "jax", "torch"]), max_size=3),
    cgroup=st.sampled_from([DOCKER, POD, SLURM, SESSION, "/", ""]) | st.text(max_size=8),
    environ=st.sampled_from([{}, Unread.DENIED]),
    gpus=st.sampled_from([A, B, D, MIXED, []]),
    device=st.none() | st.integers(-2, 9) | st.text(max_size=6),
)
def test_nothing_raises_and_only_what_is_there_is_seen(
    settings: dict[str, Setting],
    selections: list[Selection],
    frameworks: list[str] | None,
    cgroup: str,
    environ: Mapping[str, str] | Unread,
    gpus: list[GpuFacts],
    device: int | str | None,
) -> None:
    result = device_set(settings, selections, frameworks, facts(cgroup, environ), gpus)
    for seen in filter(None, (result.visible, result.unselected)):
        there = {one.uuid for one in gpus} | {one.uuid for whole in gpus for one in whole.slices}
        assert there.issuperset(seen.gpus)
        assert len(set(seen.gpus)) == len(seen.gpus)
        assert (seen.text + seen.where + seen.note).isprintable()
    concerned = targets(device, result.visible, gpus)
    assert {one.gpu for one in concerned} <= {one.uuid for one in gpus}
