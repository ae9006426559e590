"""Parsers of the numbers that declare a share, each with the rules of the program that reads them.

`4g` is 4·10⁹ bytes to genv and 4·2³⁰ to HAMi. A parser returns one `Size`, or none where the value switches
the limit off (`0`, empty). It raises ValueError, in one line, for a text that the program would refuse too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from gpuwatch.base.units import GIB, KIB, MIB, TIB, parse_share, parse_size
from gpuwatch.model.snapshot import Basis


class Size(NamedTuple):
    """Number that a text means."""

    value: float
    """Fraction or bytes, depending on the basis; a fraction of the SMs where there is no basis."""
    basis: Basis
    device: int | str | None = None
    """As in `facts.Candidate`."""


Sizes: TypeAlias = tuple[Size, ...]
Parser: TypeAlias = Callable[[str], Sizes]

MOST = 2**63 - 1
"""Largest number of bytes: no device has more, and some JSON readers accept no more."""

# Digits are bounded, so that no conversion can overflow or meet CPython's limit for long integers.
_DECIMAL = r"[+-]?(?:[0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})(?:[eE][+-]?[0-9]{1,2})?"
_WHOLE = r"[+-]?[0-9]{1,19}"


def parse_number(text: str) -> float:
    """Return a decimal number such as `0.5`, `.5`, `5e-1`; raise ValueError for infinities and NaN."""
    if re.fullmatch(_DECIMAL, text.strip()) is None:
        raise ValueError(f"{_excerpt(text)} is not a number")
    return float(text)


def _bytes(value: float, text: str) -> Sizes:
    if value < 0:
        raise ValueError(f"{_excerpt(text)} is below 0")
    if value > MOST:
        raise ValueError(f"{_excerpt(text)} is more than any GPU has")
    return (Size(int(value), Basis.BYTES),)


def _excerpt(text: str) -> str:
    return text.strip()[:24] or "nothing"


class Fraction(msgspec.Struct, frozen=True):
    """Parser of a fraction of something."""

    basis: Basis = Basis.TOTAL
    positive: bool = False
    """Whether 0 is refused."""
    off: float | None = None
    """Value that lets the framework choose."""
    whole: int = 1
    """Number that means all of it: 100 for percent."""
    most: int = 1
    """Largest allowed number, in units of `whole`."""

    def __call__(self, text: str) -> Sizes:
        value = parse_number(text)
        if value == self.off:
            return ()
        most = self.most * self.whole
        if self.positive and not 0 < value <= most:
            raise ValueError(f"{_excerpt(text)} is not above 0 and up to {most}")
        if not 0 <= value <= most:
            raise ValueError(f"{_excerpt(text)} is outside 0 to {most}")
        return (Size(value / self.whole, self.basis),)


class Bytes(msgspec.Struct, frozen=True):
    """Parser of a whole number of bytes, with the units of its owner."""

    unit: int = 1
    """Bytes of a number that has no unit."""
    units: tuple[tuple[str, int], ...] = ()
    """Ends of the text, each with the bytes of its unit."""
    off: bool = True
    """Whether 0 means that nothing is declared."""

    def __call__(self, text: str) -> Sizes:
        end, size = next(((end, size) for end, size in self.units if text.endswith(end)), ("", self.unit))
        digits = text.removesuffix(end)
        if re.fullmatch(_WHOLE, digits.strip()) is None:
            raise ValueError(f"{_excerpt(digits)} is not a whole number")
        sizes = _bytes(int(digits) * size, text)
        return () if self.off and not sizes[0].value else sizes


fraction = Fraction()
positive_fraction = Fraction(positive=True)
fraction_or_off = Fraction(off=0)
fraction_or_all = Fraction(off=1)
fraction_of_free_at_start = Fraction(Basis.FREE_AT_START)
fraction_of_free_after_load = Fraction(Basis.FREE_AFTER_LOAD)
percent_of_memory = Fraction(off=0, whole=100)
percent_of_sms = Fraction(Basis.NONE, whole=100)
mib = Bytes(MIB)
plain_bytes = Bytes()

_BINARY = {"k": KIB, "m": MIB, "g": GIB, "t": TIB}
_SI = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
spark = Bytes(
    units=tuple((end, size) for one, size in _BINARY.items() for low in (f"{one}b", one) for end in (low, low.upper()))
)
"""Parser of Spark's sizes, all binary. Source: spark, JavaUtils.java, byteSuffixes."""

genv = Bytes(
    units=(("b", 1), ("k", 10**3), ("m", 10**6), ("g", 10**9), ("ki", KIB), ("mi", MIB), ("gi", GIB)), off=False
)
"""Parser of genv's, lower case only. Source: run-ai/genv, genv/utils/utils.py, memory_to_bytes."""


def unified_fraction(text: str) -> Sizes:
    """Parse XLA's fraction with unified memory: above 1 the rest is in host memory, below 1 counts as 1.

    Source: xla/pjrt/gpu/gpu_helpers.cc, CreateBFCAllocator: total_memory × max(1, fraction).
    """
    any_host = Fraction(positive=True, most=100)  # the bytes fit 64 bits; no host has 100 times the memory of a GPU
    return tuple(size._replace(value=max(1.0, size.value)) for size in any_host(text))


def fraction_or_blocks(text: str) -> Sizes:
    """Parse lmdeploy's cache: up to 1 a fraction of the free memory, above 1 a number of blocks of unknown size.

    Source: lmdeploy/messages.py.
    """
    return () if parse_number(text) > 1 else fraction_of_free_after_load(text)


def gpuwatch(text: str) -> Sizes:
    """Parse a share in gpuwatch's own notation: `0.4`, `40%` or `20GiB`."""
    text = text.strip()
    if not text[-1:].isalpha():
        return (Size(parse_share(text), Basis.TOTAL),)
    return (Size(parse_size(text), Basis.BYTES),)


def cupy(text: str) -> Sizes:
    """Parse CuPy's limit: `50%` of the GPU, else whole bytes; 0 means no limit.

    Source: cupy/cuda/memory.pyx, _parse_limit_string.
    """
    return percent_of_memory(text.strip()[:-1]) if text.strip().endswith("%") else plain_bytes(text)


_STRTOUL = r"[ \t\n\v\f\r]*([+-]?)(?:0[xX]([0-9a-fA-F]{1,20})|0([0-7]{0,24})|([1-9][0-9]{0,24}))"


def strtoul(text: str) -> int:
    """Return the number at the start of a text as strtoul(3) does with base 0: 0x is hexadecimal, a leading 0 octal.

    Without digits the result is 0. A negative number wraps around, as in strtoul.
    """
    match = re.match(_STRTOUL, text)
    if match is None:
        return 0
    sign, hexadecimal, octal, decimal = match.groups()
    digits, base = (hexadecimal, 16) if hexadecimal else (decimal, 10) if decimal else (octal or "0", 8)
    value = min(int(digits, base), 2**64 - 1)
    return 2**64 - value if sign == "-" and value else value


def hami(text: str) -> Sizes:
    """Parse HAMi's limit: strtoul(3) with base 0, times the unit of the last letter (g, m, k: binary); 0: no limit.

    Other characters after the digits are ignored, as in HAMi: `1.5g` is 1 GiB, and `3000MB`, which ends in B, 3000
    bytes. A product that does not fit 64 bits means no limit. Source: HAMi-core multiprocess_memory_limit.c,
    get_limit_from_env.
    """
    unit = text[-1:].lower()
    value = strtoul(text) * (_BINARY.get(unit, 1) if unit != "t" else 1)
    return (Size(value, Basis.BYTES),) if 0 < value <= MOST else ()


def hami_sms(text: str) -> Sizes:
    """Parse HAMi's percent of the SMs, by the same rules as its memory; 0, and 100 or more, mean all SMs."""
    return tuple(Size(size.value / 100, Basis.NONE) for size in hami(text) if size.value < 100)


_MPS = r"\s*([0-9]{1,4}|(?:GPU|MIG)-[0-9A-Za-z/-]{1,80})\s*=\s*([0-9]{1,19})\s*([gGmM])[bB]?\s*"


def mps(text: str) -> Sizes:
    """Parse one entry of the MPS limit: an ordinal or UUID, `=`, a whole number, and G or M (binary; GB and MB too).

    Source: docs.nvidia.com/deploy/mps, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"; that G is GiB was measured.
    """
    match = re.fullmatch(_MPS, text)
    if match is None:
        raise ValueError(f"{_excerpt(text)} is not like 0=1G or 0=512M")
    device = int(match[1]) if match[1].isdecimal() else match[1]
    (size,) = _bytes(int(match[2]) * _BINARY[match[3].lower()], text)
    return (size._replace(device=device),)


_JULIA_UNITS = {
    **{"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB},
    **{"k": 10**3, "kB": 10**3, "K": 10**3, "KB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9},
}
_JULIA = r"([0-9]{1,19}(?:\.[0-9]{0,19})?)(%|[a-zA-Z]*)"


def julia(text: str) -> Sizes:
    """Parse a limit of CUDA.jl: `25%` of the GPU, bytes, `1.5GiB` (binary) or `1.5G` and `1.5GB` (decimal); 0 is off.

    Source: CUDA.jl src/pool.jl, parse_limit.
    """
    match = re.fullmatch(_JULIA, text.strip())
    if match is not None and match[2] == "%":
        return percent_of_memory(match[1])
    if match is None or match[2] not in _JULIA_UNITS:
        raise ValueError(f"{_excerpt(text)} is not like 25% or 1.5GiB")
    return _bytes(float(match[1]) * _JULIA_UNITS[match[2]], text) if float(match[1]) else ()


_RASA = r"\s*([0-9]{1,4})\s*:\s*([0-9]{1,12})\s*(?::.*)?"


def rasa(text: str) -> Sizes:
    """Parse one entry of Rasa's TF_GPU_MEMORY_ALLOC: TensorFlow's ordinal, `:`, MiB.

    Source: rasa/utils/tensorflow/environment.py.
    """
    match = re.fullmatch(_RASA, text)
    if match is None:
        raise ValueError(f"{_excerpt(text)} is not like 0:1024")
    return (Size(int(match[2]) * MIB, Basis.BYTES, int(match[1])),)


_DASK = r"(?i)([0-9]{0,19}(?:\.[0-9]{0,19})?(?:e[0-9]{1,2})?)\s*(?:([kmgt])(i?))?b?"


def dask(text: str) -> Sizes:
    """Parse a size of Dask: up to 1 a fraction of the GPU, above it bytes (`1GB` is 10⁹, `1GiB` 2³⁰); 0 is off.

    Source: dask_cuda/utils.py, parse_device_memory_limit; dask.utils.parse_bytes.
    """
    text = text.strip()
    if text in ("auto", "None", "none"):
        return ()
    match = re.fullmatch(_DASK, text)
    if match is None or not text:
        raise ValueError(f"{_excerpt(text)} is not like 0.5, 5GB or 5000M")
    value = parse_number(match[1]) if match[1] else 1.0
    if not match[2] and not text[-1:].isalpha() and value <= 1:
        return fraction_or_off(text)
    return _bytes(value * ((_BINARY if match[3] else _SI)[match[2].lower()] if match[2] else 1), text)


_VLLM = r"([0-9]{1,19}(?:\.[0-9]{1,19})?)([kKmMgGtT]?)"


def vllm(text: str) -> Sizes:
    """Parse a size of vLLM: `1k` is 1000, `1K` 1024, and only the small letters may follow a decimal fraction.

    Source: vllm/engine/arg_utils.py, human_readable_int.
    """
    match = re.fullmatch(_VLLM, text.strip())
    if match is None or ("." in match[1] and not match[2].islower()):
        raise ValueError(f"{_excerpt(text)} is not like 25.6g, 24G or 1024")
    number = float(match[1]) if "." in match[1] else int(match[1])
    return _bytes(number * ((_BINARY if match[2].isupper() else _SI)[match[2].lower()] if match[2] else 1), text)


def theano(text: str) -> Sizes:
    """Parse a start size of Theano: up to 1 a fraction of the GPU, at most 0.95; above it MB (2²⁰); 0 and less are off.

    Source: theano/gpuarray/__init__.py; rel-0.8.2 doc/library/config.txt, `lib.cnmem`.
    """
    value = parse_number(text)
    if value <= 0:
        return ()
    return (Size(min(value, 0.95), Basis.TOTAL),) if value <= 1 else _bytes(value * MIB, text)
