"""The scalars at the top of a YAML file: of what else YAML can say the file is given up.

Servers' files are flat, and two of their keys are wanted. PyYAML would be a dependency for these, and reads aliases and
merge keys, with which 400 bytes fill any memory; here a file is read line by line and never larger than it is.
"""

from __future__ import annotations

import re

_KEY = re.compile(r"""(?:"([^"\\]*)"|'([^']*)'|([^\W\d][\w./-]*))[ \t]*:(?:[ \t]+(.*))?""")
_QUOTED = re.compile(r"""(?:"([^"\\]*)"|'((?:[^']|'')*)')[ \t]*(?:#.*)?""")


def scalars(text: str) -> dict[str, tuple[int, str]]:
    """Give the line and the text of each key at the top; the text is empty where the value is not on that line.

    What a key has in lists or blocks below it is passed over. Raises ValueError, with the line, for a file that has
    more than one document, aliases, tags, merge keys, or values that run over several lines.
    """
    found: dict[str, tuple[int, str]] = {}
    nested = False
    begun = False
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = raw.rstrip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line == "---" and not begun:
            begun = True
            continue
        begun = True
        if line[0] in " \t" or line == "-" or line.startswith("- "):
            if not nested:
                raise ValueError(f"line {number} belongs to nothing that it is known to belong to")
            continue
        match = _KEY.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is no key with a value")
        value = (match[4] or "").strip()
        nested = not value or value[0] in "|>#"
        key = next(key for key in match.groups()[:3] if key is not None)
        found[key] = (number, "" if nested else _scalar(value, number))
    return found


def _scalar(value: str, number: int) -> str:
    """Give the text of a value on one line."""
    if value[0] in "\"'":
        quoted = _QUOTED.fullmatch(value)
        if quoted is None:
            raise ValueError(f"line {number} has a quotation that is left open, or an escape in it")
        return quoted[1] if quoted[1] is not None else quoted[2].replace("''", "'")
    plain = re.split(r"[ \t]#", value, maxsplit=1)[0].rstrip()
    closing = {"{": "}", "[": "]"}.get(plain[0])
    if plain[0] in "&*!%@`" or (closing is not None and not plain.endswith(closing)):
        raise ValueError(f"line {number} is more than a value")
    return plain
