"""What each pattern of code declares, and what only looks like one."""

from __future__ import annotations

from gpuwatch.base.units import MIB
from tests.declared.scanning import CUPY, TF, TORCH, read
from tests.declared.tables import Case, cases

BEFORE = {"": "", "tf": TF, "torch": TORCH, "cupy": CUPY}
"""Lines that a case's source follows; `tf` binds the GPUs to `gpus`."""


@cases("declared/patterns")
def test_each_pattern_makes_its_candidates_and_what_looks_like_one_none(case: Case) -> None:
    found = read(case["source"], BEFORE[case.get("before", "")])
    assert len(found.candidates) == len(case["expect"])
    for candidate, fields in zip(found.candidates, case["expect"], strict=True):
        assert {name: getattr(candidate, name) for name in fields} == fields
    assert case["expect"] or (found.selections, found.hints) == ((), ())


def test_a_statement_that_is_too_long_declares_nothing() -> None:
    """Of a chain of calls, and of a dictionary, only so much is looked at."""
    for source in (
        "import cupy\ncupy" + ".get_default_memory_pool()" * 20 + ".set_limit(5)",
        "o = {" + "".join(f"'k{n}': 1, " for n in range(300)) + "'gpu_mem_limit': 5}",
    ):
        assert read(source).candidates == ()


def test_the_limits_of_one_call_add_up_and_those_of_two_do_not() -> None:
    def adds(*configurations: str) -> list[tuple[str, float | None, int | str | None]]:
        calls = (f"tf.config.set_logical_device_configuration({one})\n" for one in configurations)
        found = read("".join(calls), TF + "L = tf.config.LogicalDeviceConfiguration\n")
        return [(candidate.adds, candidate.value, candidate.device) for candidate in found.candidates]

    two = adds("gpus[0], [L(512), L(memory_limit=1024)]")
    assert [value for _, value, _ in two] == [512 * MIB, 1024 * MIB]
    assert two[0][0] == two[1][0]
    first, second = adds("gpus[0], [L(512)]", "gpus[1], [L(512)]")
    assert first[0] != second[0]
    assert first[2] == 0
    assert second[2] == 1
    assert adds("gpus[0], [L(512)] * 2")[0][1] is None
    assert adds("gpus[0], [L(512) for _ in range(2)]")[0][1] is None
    assert adds("gpus[0], [L(512), other]")[0][1] is None


def test_memory_limits_come_before_the_fraction() -> None:
    found = read(
        """
        c.gpu_options.per_process_gpu_memory_fraction = 0.4
        tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(512)])
        """,
        TF,
    )
    fraction, limit = found.candidates
    assert limit.rank > fraction.rank > 0


@cases("declared/selections")
def test_each_choice_of_gpus_is_a_selection(case: Case) -> None:
    """A case without a channel leaves all GPUs visible; without ordinals, they are known only at run time."""
    selections = read(case["source"], TF).selections
    if "channel" not in case:
        assert selections == ()
        return
    (selection,) = selections
    assert selection.channel == case["channel"]
    assert selection.ordinals == (None if case["ordinals"] is None else tuple(case["ordinals"]))
    assert selection.framework == ("jax" if "jax" in case["source"] else "tensorflow")
    assert selection.line > 2
    assert selection.text
