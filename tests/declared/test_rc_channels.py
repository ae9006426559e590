"""~/.theanorc: the start size, the device, and the line that it stands in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.env import theanorc
from gpuwatch.model.snapshot import Basis, Kind

MIB = 1024**2

FOUNDING = """\
[global]
floatX = float32
device = gpu0

[lib]
# seed of many a shared GPU
cnmem = 0.3
"""


def test_the_founding_file_starts_with_three_tenths_of_the_first_gpu() -> None:
    (one,) = theanorc(FOUNDING, "~/.theanorc")
    assert (one.kind, one.basis, one.value, one.device) == (Kind.START, Basis.TOTAL, 0.3, 0)
    assert (one.channel, one.framework) == ("[lib] cnmem", "theano")
    assert (one.where, one.line, one.text) == ("~/.theanorc", 7, "cnmem = 0.3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[lib]\ncnmem=1\n", [("[lib] cnmem", 0.95, None)]),
        ("[lib]\ncnmem: 1500 ; MB\n", [("[lib] cnmem", 1500 * MIB, None)]),
        ("[gpuarray]\npreallocate = 0.4\n[global]\ndevice=cuda2", [("[gpuarray] preallocate", 0.4, 2)]),
        ("[global]\ndevice=cuda\n[lib]\ncnmem=0.1\n", [("[lib] cnmem", 0.1, None)]),
        ("[lib]\ncnmem=0.1\ncnmem=0.2\n", [("[lib] cnmem", 0.2, None)]),
        (
            "[lib]\nCNMEM=0.1\n[gpuarray]\npreallocate=0.2\n",
            [("[lib] cnmem", 0.1, None), ("[gpuarray] preallocate", 0.2, None)],
        ),
        ("[lib]\ncnmem=0\n", []),
        ("[lib]\n#cnmem=0.3\n; cnmem=0.4\n", []),
        ("[nvcc]\ncnmem=0.3\n", []),
        ("cnmem=0.3\n", []),
        ("[lib]\ncnmem\n", []),
        ("", []),
    ],
)
def test_what_a_file_says(text: str, expected: list[tuple[str, float, int | None]]) -> None:
    assert [(candidate.channel, candidate.value, candidate.device) for candidate in theanorc(text, "rc")] == expected


def test_a_value_that_is_no_number_has_no_effect() -> None:
    (candidate,) = theanorc("[lib]\ncnmem = lots\n", "rc")
    assert candidate.void == "lots is not a number"
    assert candidate.line == 2


@given(
    st.one_of(st.text(), st.lists(st.sampled_from(["[lib]", "cnmem=", "cnmem=.5", "[", "=", "\x1b"])).map("\n".join))
)
def test_no_file_is_too_odd(text: str) -> None:
    for candidate in theanorc(text, text):
        assert candidate.text.isprintable()
        assert candidate.where.isprintable()
        assert candidate.line >= 1
