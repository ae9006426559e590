"""What ~/.theanorc says: the size of the first chunk that Theano takes of the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuwatch.declared import sizes
from gpuwatch.declared.env import THEANO_START, theano_device
from gpuwatch.declared.facts import Claim, said, shown
from gpuwatch.model import Confidence, Kind
from gpuwatch.text import clean

_COMMENT = re.compile(r"^[#;]|\s[#;]")
_SIGN = re.compile(r"[=:]")


def theanorc(text: str, path: str) -> list[Claim]:
    """Give the start sizes in the text of a Theano configuration, with the GPU that its `device` names. Never raises.

    `[lib] cnmem` belongs to the old back end, `[gpuarray] preallocate` to the new one. What is given twice counts
    once, as it stands last. Likely, because THEANO_FLAGS or another file may say otherwise. Source: theano/
    configparser.py, fetch_val_for_key.
    """
    options = {f"{section}.{option}": (line, value) for line, section, option, value in _options(text)}
    _, device = options.get("global.device", (0, ""))
    found: list[Claim] = []
    for option in THEANO_START:
        if option in options:
            line, value = options[option]
            section, _, name = option.partition(".")
            claim = Claim(
                channel=f"[{section}] {name}",
                where=clean(path),
                line=line,
                text=shown(f"{name} = {value}"),
                framework="theano",
                kind=Kind.START,
                confidence=Confidence.LIKELY,
                device=theano_device(device),
            )
            found += said(claim, value, sizes.theano)
    return found


def _options(text: str) -> Iterable[tuple[int, str, str, str]]:
    """Give line, section, option and value of each option; lines that are none are passed over."""
    section = ""
    for line, content in enumerate(text.split("\n"), start=1):
        content = _COMMENT.split(content.strip(), maxsplit=1)[0].strip()
        if content.startswith("["):
            section = content[1:].partition("]")[0]
        elif content and section:
            option, *value = _SIGN.split(content, maxsplit=1)
            if value:
                yield line, section, option.strip().lower(), value[0].strip()
