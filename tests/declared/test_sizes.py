"""Numbers of the channels: each by its owner's rule, and none can be too odd."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.declared import sizes
from gpuwatch.declared.sizes import Size
from gpuwatch.model.snapshot import Basis
from tests.declared.tables import Case, cases, read_cases


@cases("declared/sizes")
def test_a_number_means_what_its_owner_makes_of_it(case: Case) -> None:
    """Units are each owner's: `4g` is decimal to genv and binary to HAMi, small letters are decimal to vLLM."""
    read = getattr(sizes, case["read"])
    if "refused" not in case:
        assert read(case["text"]) == tuple(Size(*one) for one in case["sizes"])
        return
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are compared whole
        read(case["text"])
    assert str(error.value) == case["refused"]


NEARLY = st.from_regex(r"[-+]?[0-9]{0,24}[.:=,]?[0-9a-fxG]{0,6}[ eE-]?[kKmMgGtTiIbB%]{0,3}", fullmatch=True)


@settings(max_examples=20)
@pytest.mark.parametrize("read", dict.fromkeys(case["read"] for case in read_cases("declared/sizes")))
@given(
    text=st.one_of(st.text(), NEARLY, st.sampled_from(["0=", "0:", "GPU-"]).flatmap(lambda a: NEARLY.map(a.__add__)))
)
def test_any_text_is_read_or_refused(read: str, text: str) -> None:
    with contextlib.suppress(ValueError):
        for size in getattr(sizes, read)(text):
            assert 0 <= size.value <= sizes.MOST
            if size.basis not in (Basis.BYTES, Basis.NONE):
                assert size.value <= 100
