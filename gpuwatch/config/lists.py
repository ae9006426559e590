"""The kinds of values that are lists; see `values`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from gpuwatch import text
from gpuwatch.config.values import NotAllowedError, mask_url, nearest, shown, toml_string

MOST_WORDS: Final = 64
"""Elements of a list."""
_HIGHEST_XID: Final = 999
"""NVIDIA has given out numbers up to 172 so far."""


def _listed(raw: object, allowed: str) -> list[object]:
    if not isinstance(raw, list) or len(raw) > MOST_WORDS:
        raise NotAllowedError(allowed, shown(raw) if not isinstance(raw, list) else f"{len(raw)} of them")
    return raw


def _written(words: Iterable[str]) -> str:
    return f"[{', '.join(words)}]"


class Gpus(msgspec.Struct, frozen=True):
    """GPUs by index or by the start of their UUID: one, or a list."""

    allowed: str = (
        'indices from 0 on, or (starts of) UUIDs such as "GPU-8932f937"; one, or a list; for all leave it out'
    )

    def read(self, raw: object) -> tuple[int | str, ...]:
        """Read them."""
        found = tuple(self._gpu(one) for one in (_listed(raw, self.allowed) if isinstance(raw, list) else [raw]))
        if not found:
            raise NotAllowedError(self.allowed, "an empty list")
        return found

    def _gpu(self, raw: object) -> int | str:
        if isinstance(raw, str) and re.fullmatch(r"GPU-[0-9A-Fa-f][0-9A-Fa-f-]{0,35}", raw):
            return raw
        if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw < 10**6:
            return raw
        raise NotAllowedError(self.allowed, shown(raw))

    def write(self, value: tuple[int | str, ...]) -> str:
        """Write them."""
        return _written(str(one) if isinstance(one, int) else toml_string(one) for one in value)


class Codes(msgspec.Struct, frozen=True):
    """Numbers of XIDs."""

    allowed: str = f"a list of XID numbers from 1 to {_HIGHEST_XID}"

    def read(self, raw: object) -> frozenset[int]:
        """Read them."""
        return frozenset(self._code(one) for one in _listed(raw, self.allowed))

    def _code(self, raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= _HIGHEST_XID:
            raise NotAllowedError(self.allowed, shown(raw))
        return raw

    def write(self, value: frozenset[int]) -> str:
        """Write them, in order."""
        return _written(map(str, sorted(value)))


class RuleNames(msgspec.Struct, frozen=True):
    """Names of the rules that gpuwatch brings."""

    allowed: str = "a list of names of rules"

    def read(self, raw: object) -> frozenset[str]:
        """Read them."""
        listed = _listed(raw, self.allowed)
        known = rule_names() if listed else frozenset()
        for one in listed:
            if not isinstance(one, str) or one not in known:
                near = nearest(one, known) if isinstance(one, str) else ""
                hint = f" (did you mean {toml_string(near)}?)" if near else ""
                raise NotAllowedError(", ".join(map(toml_string, sorted(known))), f"{shown(one)}{hint}")
        return frozenset(str(one) for one in listed)

    def write(self, value: frozenset[str]) -> str:
        """Write them, in order."""
        return _written(map(toml_string, sorted(value)))


def rule_names() -> frozenset[str]:
    """Give the names of the rules that gpuwatch brings."""
    from gpuwatch.alerts import table

    return table.names()


class Command(msgspec.Struct, frozen=True):
    """A program and its arguments, never a line for a shell. A relative name would depend on where one stands."""

    allowed: str = 'a list such as ["/home/ada/bin/tell", "--loud"], whose first is an absolute path or begins with ~/'

    def read(self, raw: object) -> tuple[str, ...]:
        """Read it."""
        words: list[str] = []
        for one in _listed(raw, self.allowed):
            if not isinstance(one, str) or "\0" in one:
                raise NotAllowedError(self.allowed, shown(one))
            words.append(one)
        if words and not (words[0].startswith(("/", "~/")) and text.clean(words[0]) == words[0]):
            raise NotAllowedError(self.allowed, f"{shown(words[0])} as the first")
        return tuple(words)

    def write(self, value: tuple[str, ...]) -> str:
        """Write it."""
        return _written(map(toml_string, value))


class Urls(msgspec.Struct, frozen=True):
    """Addresses that apprise knows; each holds a secret, so none is ever quoted."""

    allowed: str = 'a list of apprise\'s URLs, such as ["slack://..."]'

    def read(self, raw: object) -> tuple[str, ...]:
        """Read them."""
        if isinstance(raw, str):
            raise NotAllowedError(self.allowed, f'"{mask_url(raw)}" alone')
        return tuple(self._url(one) for one in _listed(raw, self.allowed))

    def _url(self, raw: object) -> str:
        if not isinstance(raw, str):
            raise NotAllowedError(self.allowed, shown(raw))
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9.+-]{0,30}://[^\s\x00-\x1f\x7f]{1,4000}", raw):
            raise NotAllowedError(self.allowed, f'"{mask_url(raw)}", which is none')
        return raw

    def write(self, value: tuple[str, ...]) -> str:
        """Write them; for nobody's eyes."""
        return _written(map(toml_string, value))
