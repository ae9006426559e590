"""gpuwatch.toml as text: the documented default file, and what holds now with where each value comes from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuwatch import text
from gpuwatch.alerts.alert import Unit
from gpuwatch.alerts.rules.custom import METRICS
from gpuwatch.alerts.rules.memory import OwnRule
from gpuwatch.config import Config
from gpuwatch.config.keys import Key, amount_keys, keys_of, sections, share_keys, value_of
from gpuwatch.config.reading import Origin

_WIDEST: Final = 36
"""Cells up to which the comments of a section stand in one column; a longer value pushes its own to the right."""
_UNSET: Final = (None, "", ())
"""Values that a table leaves out."""

_UNITS: Final = {
    Unit.BYTES: "size",
    Unit.FREE: "size",
    Unit.SECONDS: "duration",
    Unit.CELSIUS: "degrees Celsius",
    Unit.WATTS: "watts",
    Unit.PERCENT: "percent: 40, not 0.4",
    Unit.COUNT: "number",
    Unit.MHZ: "MHz",
}
"""What stands in the file for a metric's unit."""

HEAD: Final = """\
# gpuwatch.toml: every key with its default. Take the # away before what you change.
# `gpuwatch config --check` finds mistakes, `gpuwatch config --show` says what holds and why.
# A running gpuwatch reads this file again on SIGHUP, the dashboard also with the key L.
# A duration is in seconds, or "500ms", "30s", "10min", "2h"; a size is in bytes, or "512MiB", "20GiB".
"""

EXAMPLES: Final = """\
# A rule of your own; any number of these. Metrics, by what they are about (scope), and in what unit:
{metrics}
#
# [[rule]]
# name = "hot memory"     # 1 to 40 characters, none of gpuwatch's own names
# metric = "temperature"
# scope = "gpu"           # or "process", "user"; left out: "gpu"
# above = 80              # or below = 20; sizes as "20GiB", durations as "10min"
# clear = 75              # the value that ends it; left out: the same
# for = "30s"             # so long, to raise it and to end it; left out: 10s
# severity = "warning"    # or "note", "critical"; left out: "warning"
# gpu = [0, 1]            # or one, or "GPU-8932"; left out: each
# user = "ada"            # a name or a uid; left out: anybody

# What was agreed on with somebody who cannot change a launch.
#
# [[share]]
# user = "ada"            # a name or a uid; left out: anybody
# command = "train"       # a regular expression, searched in the command line; left out: any
# gpu = 2                 # or [0, 2], or "GPU-8932"; left out: each
# share = 0.4             # or memory = "20GiB"
"""


def default_text() -> str:
    """Return the file that `--init` writes: every key commented out, with its default and what it is for."""
    blocks = [
        "\n".join(line if line.startswith("[") else f"# {line}" for line in lines) + "\n" for lines in _defaults()
    ]
    metrics = "\n".join(_metrics(scope) for scope in ("gpu", "process", "user"))
    return "\n".join([HEAD, *blocks, EXAMPLES.replace("{metrics}", metrics)])


def shown_defaults() -> str:
    """Return the keys of that file with their defaults, not commented out, as the documentation shows them."""
    return "\n".join("\n".join(lines) + "\n" for lines in _defaults())


def _defaults() -> Iterator[list[str]]:
    """Yield the lines of each table."""
    for table, keys in sections().items():
        pairs = [(_pair(key, value_of(Config(), whole)), key.description) for whole, key in keys.items()]
        yield [*_header(table), *_align(pairs)]


def _header(table: str) -> list[str]:
    """Return the header of a table with what it is for; nothing for the keys before the first."""
    return [f"[{table}]  # {keys_of(Config)[table].description}"] if table else []


def _pair(key: Key, value: Any) -> str:
    return f"{key.name} = {key.write(value)}"


def _align(pairs: list[tuple[str, str]]) -> list[str]:
    """Put each comment behind its pair, in one column."""
    width = max((len(pair) for pair, _ in pairs if len(pair) <= _WIDEST), default=0)
    return [f"{pair:<{width}}  # {comment}" for pair, comment in pairs]


def _metrics(scope: str) -> str:
    """List what a rule about a GPU, a process or a user can compare, by unit."""
    named: dict[str, list[str]] = {}
    for name, metric in METRICS.items():
        if scope in metric.scopes:
            named.setdefault(_UNITS[metric.unit], []).append(name)
    words = "; ".join(f"{', '.join(names)} ({unit})" for unit, names in named.items())
    return textwrap.fill(words, 112, initial_indent=f"# {scope}: ", subsequent_indent="#   ")


# ---------------------------------------------------------------------------------------------------------------
# What holds


def effective_text(config: Config, origins: Mapping[str, Origin]) -> str:
    """Return every key with its value as TOML, and where it comes from in a comment.

    Read again it gives the same configuration, but for what is secret: that is masked, and commented out.
    """
    blocks = []
    for table, keys in sections().items():
        pairs = [
            (_shown_pair(key, value_of(config, whole)), str(origins.get(whole, Origin())))
            for whole, key in keys.items()
        ]
        blocks.append("\n".join([*_header(table), *_align(pairs)]))
    for rule in config.rules:
        keys = keys_of(OwnRule) | amount_keys(rule.metric)
        blocks.append(_table("rule", str(origins.get(f"rule {rule.name}", Origin())), rule, keys.values()))
    for share in config.shares:
        place = str(Origin(Path(share.where), share.line))
        blocks.append(_table("share", f"{place}, a ceiling" if share.ceiling else place, share, share_keys().values()))
    return "\n\n".join(blocks) + "\n"


def _shown_pair(key: Key, value: Any) -> str:
    """Return a key with its value; what holds a secret is masked, and commented out."""
    if key.name == "urls" and value:
        return f"# urls = [{', '.join(text.mask_url(url) for url in value)}]"
    if key.name == "command" and (masked := text.redact(value)) != list(value):
        return f"# {_pair(key, tuple(masked))}"
    return _pair(key, value)


def _table(name: str, origin: str, values: msgspec.Struct, keys: Iterable[Key]) -> str:
    found = ((key, getattr(values, key.field)) for key in keys)
    return "\n".join([f"[[{name}]]  # {origin}", *(_pair(key, value) for key, value in found if value not in _UNSET)])
