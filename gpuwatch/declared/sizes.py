"""Numbers of the channels, each as the program that reads it does: `4g` is 4·10⁹ bytes to genv and 4·2³⁰ to HAMi.

A reader takes the text of a value and gives what it says: one `Size`, one for each GPU that it names, or none where
the value switches the thing off (`0`, empty). It raises ValueError, in one line, for what its owner would refuse too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from gpuwatch.model import Basis
from gpuwatch.units import GIB, KIB, MIB, TIB, parse_share, parse_size


class Size(NamedTuple):
    """Number that one value means."""

    value: float
    """Fraction or bytes, by the basis; a fraction of the SMs where there is no basis."""
    basis: Basis
    device: int | str | None = None
    """As in `facts.Candidate`."""


Sizes: TypeAlias = tuple[Size, ...]
Parser: TypeAlias = Callable[[str], Sizes]

MOST = 2**63 - 1
"""Largest number of bytes: nothing has more, and not every JSON reader accepts more."""

# Digits are bounded, so that no conversion can overflow or meet CPython's limit for long integers.
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})(?:[eE][+-]?[0-9]{1,2})?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"k": KIB, "m": MIB, "g": GIB, "t": TIB}


def number(text: str) -> float:
    """Read a decimal number such as `0.5`, `.5`, `5e-1`; infinities and NaN are none."""
    if _DECIMAL.fullmatch(text.strip()) is None:
        raise ValueError(f"{_shown(text)} is no number")
    return float(text)


def whole(text: str) -> int:
    """Read a whole number in decimal digits."""
    if _WHOLE.fullmatch(text.strip()) is None:
        raise ValueError(f"{_shown(text)} is no whole number")
    return int(text)


def _within(value: float, most: float, text: str) -> float:
    if not 0 <= value <= most:
        raise ValueError(f"{_shown(text)} is outside 0 to {most:g}")
    return value


def _bytes(value: float, text: str) -> int:
    if value < 0:
        raise ValueError(f"{_shown(text)} is below 0")
    if value > MOST:
        raise ValueError(f"{_shown(text)} is more than any GPU has")
    return int(value)


def _shown(text: str) -> str:
    return text.strip()[:24] or "nothing"


# -- plain numbers ----------------------------------------------------------------------------------------------------


def fraction(text: str) -> Sizes:
    """Read a fraction of the GPU from 0 to 1."""
    return (Size(_within(number(text), 1, text), Basis.TOTAL),)


def positive_fraction(text: str) -> Sizes:
    """Read a fraction of the GPU above 0, up to 1; of 0 the owner makes an error, or nothing could run."""
    value = number(text)
    if not 0 < value <= 1:
        raise ValueError(f"{_shown(text)} is not above 0 and up to 1")
    return (Size(value, Basis.TOTAL),)


def fraction_or_off(text: str) -> Sizes:
    """Read a fraction of the GPU; 0 leaves the choice to the framework."""
    return fraction(text) if number(text) else ()


def fraction_or_all(text: str) -> Sizes:
    """Read a fraction of the GPU; all of it is the default."""
    return fraction(text) if number(text) != 1 else ()


_MOST_UNIFIED = 100
"""Times the GPU: a bound of ours, so that the bytes fit 64 bits; no host has as much memory."""


def unified_fraction(text: str) -> Sizes:
    """Read XLA's fraction with unified memory: one above 1 goes on in the host's memory, one below 1 counts as 1.

    Source: xla/pjrt/gpu/gpu_helpers.cc, CreateBFCAllocator: total_memory × max(1, fraction).
    """
    value = number(text)
    if not 0 < value <= _MOST_UNIFIED:
        raise ValueError(f"{_shown(text)} is not above 0 and up to {_MOST_UNIFIED}")
    return (Size(max(1.0, value), Basis.TOTAL),)


def fraction_of_free_at_start(text: str) -> Sizes:
    """Read a fraction of what is free when a server starts."""
    return (Size(_within(number(text), 1, text), Basis.FREE_AT_START),)


def fraction_of_free_after_load(text: str) -> Sizes:
    """Read a fraction of what is free once the weights are loaded."""
    return (Size(_within(number(text), 1, text), Basis.FREE_AFTER_LOAD),)


def fraction_or_blocks(text: str) -> Sizes:
    """Read lmdeploy's: up to 1 a fraction of what is free, above it a number of blocks of unknown size.

    Source: lmdeploy/messages.py.
    """
    return () if number(text) > 1 else fraction_of_free_after_load(text)


def mib(text: str) -> Sizes:
    """Read whole MiB; 0 is none."""
    value = _bytes(whole(text) * MIB, text)
    return (Size(value, Basis.BYTES),) if value else ()


def plain_bytes(text: str) -> Sizes:
    """Read whole bytes; 0 is none."""
    value = _bytes(whole(text), text)
    return (Size(value, Basis.BYTES),) if value else ()


def percent_of_memory(text: str) -> Sizes:
    """Read 0 to 100 percent of the GPU; 0 is none."""
    value = _within(number(text), 100, text)
    return (Size(value / 100, Basis.TOTAL),) if value else ()


def percent_of_sms(text: str) -> Sizes:
    """Read 0 to 100 percent of the SMs."""
    return (Size(_within(number(text), 100, text) / 100, Basis.NONE),)


# -- with units, by their owners' rules -------------------------------------------------------------------------------


def gpuwatch(text: str) -> Sizes:
    """Read gpuwatch's own: `0.4`, `40%` or `20GiB`."""
    text = text.strip()
    if not text[-1:].isalpha():
        return (Size(parse_share(text), Basis.TOTAL),)
    return (Size(parse_size(text), Basis.BYTES),)


def cupy(text: str) -> Sizes:
    """Read CuPy's: `50%` of the GPU, else whole bytes; 0 is no limit.

    Source: cupy/cuda/memory.pyx, _parse_limit_string.
    """
    return percent_of_memory(text.strip()[:-1]) if text.strip().endswith("%") else plain_bytes(text)


_HAMI_UNITS = {"k": KIB, "m": MIB, "g": GIB}


def hami(text: str) -> Sizes:
    """Read HAMi's: strtoul(3) with base 0, times what the last letter says (g, m, k: binary); 0 is no limit.

    What follows the digits is passed over, as there: `1.5g` is 1 GiB, and `3000MB`, which ends in B, 3000 bytes. A
    product that does not fit 64 bits is no limit either. Source: HAMi-core multiprocess_memory_limit.c,
    get_limit_from_env.
    """
    value = strtoul(text) * _HAMI_UNITS.get(text[-1:].lower(), 1)
    return (Size(value, Basis.BYTES),) if 0 < value <= MOST else ()


_STRTOUL = re.compile(r"[ \t\n\v\f\r]*([+-]?)(?:0[xX]([0-9a-fA-F]{1,20})|0([0-7]{0,24})|([1-9][0-9]{0,24}))")


def strtoul(text: str) -> int:
    """Read the number at the start of a text as strtoul(3) does with base 0: 0x is hexadecimal, a leading 0 octal.

    0 for no digits. A negative number wraps around, as there.
    """
    match = _STRTOUL.match(text)
    if match is None:
        return 0
    sign, hexadecimal, octal, decimal = match.groups()
    digits, base = (hexadecimal, 16) if hexadecimal else (decimal, 10) if decimal else (octal or "0", 8)
    value = min(int(digits, base), 2**64 - 1)
    return 2**64 - value if sign == "-" and value else value


def hami_sms(text: str) -> Sizes:
    """Read HAMi's percent of the SMs, by the same rule as its memory; 0, and 100 or more, are all of them."""
    return tuple(Size(size.value / 100, Basis.NONE) for size in hami(text) if size.value < 100)


_MPS = re.compile(r"\s*([0-9]{1,4}|(?:GPU|MIG)-[0-9A-Za-z/-]{1,80})\s*=\s*([0-9]{1,19})\s*([gGmM])[bB]?\s*")


def mps(text: str) -> Sizes:
    """Read one entry of the MPS limit: an ordinal or UUID, `=`, a whole number, and G or M (binary; GB and MB too).

    Source: docs.nvidia.com/deploy/mps, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"; that G is GiB was measured.
    """
    match = _MPS.fullmatch(text)
    if match is None:
        raise ValueError(f"{_shown(text)} is not like 0=1G or 0=512M")
    device = int(match[1]) if match[1].isdecimal() else match[1]
    return (Size(_bytes(int(match[2]) * _BINARY_UNITS[match[3].lower()], text), Basis.BYTES, device),)


_GENV = (("b", 1), ("k", 10**3), ("m", 10**6), ("g", 10**9), ("ki", KIB), ("mi", MIB), ("gi", GIB))


def genv(text: str) -> Sizes:
    """Read genv's: b, k, m and g are powers of 1000, ki, mi and gi of 1024, no unit is bytes; lower case only.

    Source: run-ai/genv, genv/utils/utils.py, memory_to_bytes.
    """
    for unit, factor in _GENV:
        if text.endswith(unit):
            return (Size(_bytes(whole(text.removesuffix(unit)) * factor, text), Basis.BYTES),)
    return (Size(_bytes(whole(text), text), Basis.BYTES),)


_DASK = re.compile(r"([0-9]{0,19}(?:\.[0-9]{0,19})?(?:e[0-9]{1,2})?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)


def dask(text: str) -> Sizes:
    """Read Dask's: up to 1 a fraction of the GPU, above it bytes, with a unit (`1GB` is 10⁹, `1GiB` 2³⁰); 0 is off.

    Source: dask_cuda/utils.py, parse_device_memory_limit; dask.utils.parse_bytes.
    """
    text = text.strip()
    if text in ("auto", "None", "none"):
        return ()
    match = _DASK.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{_shown(text)} is not like 0.5, 5GB or 5000M")
    value = number(match[1]) if match[1] else 1.0
    if not match[2] and not text[-1:].isalpha() and value <= 1:
        return fraction_or_off(text)
    return (Size(_bytes(value * _scale(match[2], bool(match[3])), text), Basis.BYTES),)


_VLLM = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)([kKmMgGtT]?)")


def vllm(text: str) -> Sizes:
    """Read vLLM's: `1k` is 1000, `1K` 1024, and only the small letters may follow a decimal fraction.

    Source: vllm/engine/arg_utils.py, human_readable_int.
    """
    match = _VLLM.fullmatch(text.strip())
    if match is None or ("." in match[1] and not match[2].islower()):
        raise ValueError(f"{_shown(text)} is not like 25.6g, 24G or 1024")
    factor = _scale(match[2], match[2].isupper())
    value = float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
    return (Size(_bytes(value, text), Basis.BYTES),)


def _scale(unit: str | None, binary: bool) -> int:
    units: Mapping[str, int] = _BINARY_UNITS if binary else _DECIMAL_UNITS
    return units[unit.lower()] if unit else 1


THEANO_MOST = 0.95


def theano(text: str) -> Sizes:
    """Read Theano's: up to 1 a fraction of the GPU, at most 0.95; above it MB (2²⁰); 0 and less are off.

    Source: theano/gpuarray/__init__.py; rel-0.8.2 doc/library/config.txt, `lib.cnmem`.
    """
    value = number(text)
    if value <= 0:
        return ()
    if value <= 1:
        return (Size(min(value, THEANO_MOST), Basis.TOTAL),)
    return (Size(_bytes(value * MIB, text), Basis.BYTES),)


# -- per device -------------------------------------------------------------------------------------------------------


def _of_device(text: str) -> tuple[int, str]:
    device, colon, rest = text.partition(":")
    if not colon:
        raise ValueError(f"{_shown(text)} is not like 0:{{number}}")
    return whole(device), rest


def device_bytes(text: str) -> Sizes:
    """Read Triton's `0:67108864`: bytes on one device."""
    device, rest = _of_device(text)
    return tuple(size._replace(device=device) for size in plain_bytes(rest))


def device_left_free(text: str) -> Sizes:
    """Read Triton's `0:0.8`, the use of a device above which no model is loaded, as the fraction to be left free."""
    device, rest = _of_device(text)
    return (Size(1 - _within(number(rest), 1, rest), Basis.TOTAL, device),)


def mib_by_device(text: str) -> Sizes:
    """Read llama.cpp's `1024` for every device, or `1024,2048` one by one, in MiB.

    Source: ggml-org/llama.cpp, common/arg.cpp, `--fit-target`.
    """
    parts = [part for part in text.split(",")[:64] if part.strip()]
    if len(parts) < 2:
        return mib(text)
    return tuple(size._replace(device=place) for place, part in enumerate(parts) for size in mib(part))
