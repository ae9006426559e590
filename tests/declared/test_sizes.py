"""Numbers of the channels: each by its owner's rule, and none can be too odd."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.declared import sizes
from gpuwatch.declared.sizes import Parser, Size
from gpuwatch.model import Basis

MIB = 1024**2
GIB = 1024**3
TOTAL, BYTES, NONE = Basis.TOTAL, Basis.BYTES, Basis.NONE


MEANINGS: list[tuple[Parser, str, list[tuple[float, Basis] | tuple[float, Basis, int | str]]]] = [
    (sizes.fraction, ".3", [(0.3, TOTAL)]),
    (sizes.fraction, " 5e-1 ", [(0.5, TOTAL)]),
    (sizes.fraction, "0", [(0, TOTAL)]),
    (sizes.fraction_or_off, "0.0", []),
    (sizes.fraction_or_off, "1", [(1, TOTAL)]),
    (sizes.unified_fraction, "1.4", [(1.4, TOTAL)]),
    (sizes.fraction_of_free_at_start, "0.8", [(0.8, Basis.FREE_AT_START)]),
    (sizes.fraction_or_blocks, "0.2", [(0.2, Basis.FREE_AFTER_LOAD)]),
    (sizes.fraction_or_blocks, "1000", []),
    (sizes.mib, "1024", [(GIB, BYTES)]),
    (sizes.mib, "0", []),
    (sizes.plain_bytes, "536870912", [(512 * MIB, BYTES)]),
    (sizes.percent_of_memory, "5", [(0.05, TOTAL)]),
    (sizes.percent_of_sms, "50", [(0.5, NONE)]),
    # gpuwatch: binary units, as GPUs are counted
    (sizes.gpuwatch, "0.4", [(0.4, TOTAL)]),
    (sizes.gpuwatch, "40%", [(0.4, TOTAL)]),
    (sizes.gpuwatch, "20GiB", [(20 * GIB, BYTES)]),
    # CuPy: percent, or bytes
    (sizes.cupy, "50%", [(0.5, TOTAL)]),
    (sizes.cupy, "1073741824", [(GIB, BYTES)]),
    (sizes.cupy, "0", []),
    (sizes.cupy, "0%", []),
    # HAMi: strtoul, binary units, the last letter counts
    (sizes.hami, "3000m", [(3000 * MIB, BYTES)]),
    (sizes.hami, "4g", [(4 * GIB, BYTES)]),
    (sizes.hami, "4G", [(4 * GIB, BYTES)]),
    (sizes.hami, "512k", [(512 * 1024, BYTES)]),
    (sizes.hami, "1000", [(1000, BYTES)]),
    (sizes.hami, "0x10m", [(16 * MIB, BYTES)]),
    (sizes.hami, "010m", [(8 * MIB, BYTES)]),
    (sizes.hami, "1.5g", [(GIB, BYTES)]),
    (sizes.hami, "3000MB", [(3000, BYTES)]),
    (sizes.hami, "4t", [(4, BYTES)]),
    (sizes.hami, "0", []),
    (sizes.hami, "", []),
    (sizes.hami, "g", []),
    (sizes.hami, "0x", []),
    (sizes.hami, "-1", []),
    (sizes.hami, "-0", []),
    (sizes.hami, "99999999999999999999g", []),
    (sizes.hami_sms, "50", [(0.5, NONE)]),
    (sizes.hami_sms, "100", []),
    (sizes.hami_sms, "0", []),
    # MPS: binary units; GB and MB are in NVIDIA's own example
    (sizes.mps, "0=1G", [(GIB, BYTES, 0)]),
    (sizes.mps, " 1 = 512MB ", [(512 * MIB, BYTES, 1)]),
    (sizes.mps, "GPU-8932f937-d72c=2g", [(2 * GIB, BYTES, "GPU-8932f937-d72c")]),
    # genv: decimal unless it says i
    (sizes.genv, "4g", [(4 * 10**9, BYTES)]),
    (sizes.genv, "4gi", [(4 * GIB, BYTES)]),
    (sizes.genv, "500m", [(500 * 10**6, BYTES)]),
    (sizes.genv, "16b", [(16, BYTES)]),
    (sizes.genv, "1024", [(1024, BYTES)]),
    # Dask: a fraction up to 1, bytes above; units as SI has them
    (sizes.dask, "0.8", [(0.8, TOTAL)]),
    (sizes.dask, "1", [(1, TOTAL)]),
    (sizes.dask, "1GB", [(10**9, BYTES)]),
    (sizes.dask, "1GiB", [(GIB, BYTES)]),
    (sizes.dask, "5000M", [(5 * 10**9, BYTES)]),
    (sizes.dask, "1e9", [(10**9, BYTES)]),
    (sizes.dask, "MB", [(10**6, BYTES)]),
    (sizes.dask, "8000000000", [(8 * 10**9, BYTES)]),
    (sizes.dask, "auto", []),
    (sizes.dask, "0", []),
    # vLLM: small letters decimal, capitals binary
    (sizes.vllm, "25.6g", [(25_600_000_000, BYTES)]),
    (sizes.vllm, "24G", [(24 * GIB, BYTES)]),
    (sizes.vllm, "1024", [(1024, BYTES)]),
    # Theano: a fraction up to 1, clipped; MB above
    (sizes.theano, "0.3", [(0.3, TOTAL)]),
    (sizes.theano, "1", [(0.95, TOTAL)]),
    (sizes.theano, "1500", [(1500 * MIB, BYTES)]),
    (sizes.theano, "0", []),
    (sizes.theano, "-1", []),
]


@pytest.mark.parametrize(("read", "text", "expected"), MEANINGS)
def test_a_number_means_what_its_owner_makes_of_it(
    read: Parser, text: str, expected: list[tuple[float, Basis] | tuple[float, Basis, int | str]]
) -> None:
    assert read(text) == tuple(Size(*one) for one in expected)


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (sizes.fraction, "1.4", "1.4 is outside 0 to 1"),
        (sizes.fraction, "-0.1", "-0.1 is outside 0 to 1"),
        (sizes.fraction, "half", "half is no number"),
        (sizes.fraction, "nan", "nan is no number"),
        (sizes.fraction, "inf", "inf is no number"),
        (sizes.fraction, "", "nothing is no number"),
        (sizes.fraction, "1_0", "1_0 is no number"),
        (sizes.positive_fraction, "0", "0 is not above 0 and up to 1"),
        (sizes.unified_fraction, "0", "0 is not above 0 and up to 100"),
        (sizes.mib, "1.5", "1.5 is no whole number"),
        (sizes.mib, "-1", "-1 is below 0"),
        (sizes.mib, "9999999999999999999", "9999999999999999999 is more than any GPU has"),
        (sizes.percent_of_sms, "120", "120 is outside 0 to 100"),
        (sizes.gpuwatch, "1.4", "share '1.4' is not allowed; write more than 0 and up to 1, such as 0.4 or 40%"),
        (sizes.gpuwatch, "30", "share '30' is not allowed; write more than 0 and up to 1, such as 0.4 or 40%"),
        (sizes.gpuwatch, "30B", "size '30B' is too small; 1MiB or more is allowed, such as 512MiB or 20GiB"),
        (sizes.cupy, "150%", "150 is outside 0 to 100"),
        (sizes.cupy, "1G", "1G is no whole number"),
        (sizes.mps, "0=1", "0=1 is not like 0=1G or 0=512M"),
        (sizes.mps, "0=0.5G", "0=0.5G is not like 0=1G or 0=512M"),
        (sizes.genv, "4G", "4G is no whole number"),
        (sizes.genv, "4gb", "4g is no whole number"),
        (sizes.dask, "", "nothing is not like 0.5, 5GB or 5000M"),
        (sizes.dask, "five", "five is not like 0.5, 5GB or 5000M"),
        (sizes.dask, "e5", "e5 is no number"),
        (sizes.vllm, "25.6G", "25.6G is not like 25.6g, 24G or 1024"),
    ],
)
def test_what_an_owner_would_refuse_is_refused_in_one_line(read: Parser, text: str, words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are compared whole
        read(text)
    assert str(error.value) == words


NEARLY = st.from_regex(r"[-+]?[0-9]{0,24}[.:=,]?[0-9a-fxG]{0,6}[ eE-]?[kKmMgGtTiIbB%]{0,3}", fullmatch=True)


@settings(max_examples=20)
@pytest.mark.parametrize("read", list(dict.fromkeys(row[0] for row in MEANINGS)))
@given(
    text=st.one_of(st.text(), NEARLY, st.sampled_from(["0=", "0:", "GPU-"]).flatmap(lambda a: NEARLY.map(a.__add__)))
)
def test_any_text_is_read_or_refused(read: Parser, text: str) -> None:
    with contextlib.suppress(ValueError):
        for size in read(text):
            assert 0 <= size.value <= sizes.MOST
            if size.basis not in (Basis.BYTES, Basis.NONE):
                assert size.value <= 100
