"""gpuwatch.toml as text: the documented default file, and the settings in effect with their origins."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuwatch.alerts.limits import CustomRule, Scope
from gpuwatch.alerts.rules.custom import GRAMMARS
from gpuwatch.base import text
from gpuwatch.base.units import Unit
from gpuwatch.config.keys import ConfigKey, keys_of, sections, toml_string, value_of
from gpuwatch.config.types import Config, RemoteHost
from gpuwatch.declared.facts import Share
from gpuwatch.model.fields import RATIO

_WIDEST: Final = 36
"""Cells up to which the comments of a section are aligned; a longer value pushes its comment to the right."""
_EXAMPLE: Final = 22
"""Cells of a key with its value in an example."""
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
"""Name of a metric's unit in the file."""

HEAD: Final = """\
# gpuwatch.toml: every key with its default. Remove the # before what you change.
# `gpuwatch config --check` finds mistakes, `gpuwatch config --show` prints what is in effect and its origin.
# A running gpuwatch reads this file again on SIGHUP, the dashboard also with the key L.
# A duration is in seconds, or "500ms", "30s", "10min", "2h"; a size is in bytes, or "512MiB", "20GiB".
"""

RULES: Final = (
    "# A rule of your own; any number of these. Figures that it can compare, by what it is about, with their units:\n"
)
FILTERS: Final = """\
[filters]  # filters with names of your own: in the line of `/` by Tab or as @long, and as --filter @long
# long = "mem>10GiB idle>30m"
"""
HOSTS: Final = "# Another machine, shown by ssh: H lists them; any number of these.\n"
SHARES: Final = "# What was agreed on with somebody who cannot change a launch.\n"


def default_text() -> str:
    """Return the file that `--init` writes: every key commented out, with its default and its meaning."""
    tables = _tables(Config(), lambda _, key: key.description)
    commented = [textwrap.indent(table, "# ", lambda line: not line.startswith("[")) for table in tables]
    figures = "".join(_figures(scope) + "\n" for scope in GRAMMARS)
    arrays: dict[str, tuple[str, type[msgspec.Struct]]] = {
        RULES + figures: ("rule", CustomRule),
        SHARES: ("share", Share),
        HOSTS: ("host", RemoteHost),
    }
    examples = [words + _example(name, struct) for words, (name, struct) in arrays.items()]
    return "\n".join([HEAD, *commented, FILTERS, *examples])


def effective_text(config: Config, origins: Mapping[str, str]) -> str:
    """Return every key with its value as TOML, with its origin in a comment: a file or a flag, else the default.

    The text can be read as the same configuration, except for secrets, which are masked and commented out.
    """
    blocks = [*_tables(config, lambda name, _: origins.get(name, "default"))]
    saved = [(f"{name} = {toml_string(one)}", origins[f"filters.{name}"]) for name, one in config.filters.items()]
    if saved:
        blocks.append("".join(f"{line}\n" for line in ["[filters]", *_align(saved)]))
    tables: list[tuple[str, msgspec.Struct]] = [
        *((f"[[rule]]  # {origins[f'rule {rule.name}']}", rule) for rule in config.rules),
        *((f"[[share]]  # {share.where}{', a ceiling' * share.ceiling}", share) for share in config.shares),
        *((f"[[host]]  # {origins[f'host {host.name}']}", host) for host in config.hosts),
    ]
    return "\n".join([*blocks, *(_table(header, one) for header, one in tables)])


def _tables(config: Config, comment: Callable[[str, ConfigKey], str]) -> Iterator[str]:
    """Yield the text of each single table, with a comment after every key."""
    for table, keys in sections().items():
        header = [f"[{table}]  # {keys_of(Config)[table].description}"] if table else []
        pairs = [(_pair(key, value_of(config, name)), comment(name, key)) for name, key in keys.items()]
        yield "".join(f"{line}\n" for line in [*header, *_align(pairs)])


def _table(header: str, values: msgspec.Struct) -> str:
    """Return the text of one table of an array, with the keys that are set."""
    found = ((key, getattr(values, key.field)) for key in keys_of(type(values)).values())
    return "".join([f"{header}\n", *(f"{_pair(key, value)}\n" for key, value in found if value not in _UNSET)])


def _pair(key: ConfigKey, value: Any) -> str:
    """Return a key with its value; a secret is masked, and its line commented out."""
    if key.form == "urls" and value:
        return f"# {key.name} = [{', '.join(text.mask_url(url) for url in value)}]"
    if key.form == "command" and (masked := text.redact(value)) != list(value):
        return f"# {key.name} = {key.write(tuple(masked))}"
    return f"{key.name} = {key.write(value)}"


def _align(pairs: list[tuple[str, str]], width: int = 0) -> list[str]:
    """Put each comment after its key and value, in one column."""
    width = width or max((len(pair) for pair, _ in pairs if len(pair) <= _WIDEST), default=0)
    return [f"{pair:<{width}}  # {comment}" for pair, comment in pairs]


def _example(table: str, struct: type[msgspec.Struct]) -> str:
    keys = [key for key in keys_of(struct).values() if "examples" in key.bounds]
    pairs = [(f"{key.name} = {key.bounds['examples'][0]}", key.description) for key in keys]
    return "#\n" + "".join(f"# {line}\n" for line in [f"[[{table}]]", *_align(pairs, _EXAMPLE)])


def _figures(scope: Scope) -> str:
    """List the figures that a rule can compare, by unit."""
    named: dict[str, list[str]] = {}
    for name, field in GRAMMARS[scope].figures.items():
        unit = "ratio: 1.5 or 150%" if field.format is RATIO else _UNITS[field.unit]
        named.setdefault(unit, []).append(name)
    words = "; ".join(f"{', '.join(names)} ({unit})" for unit, names in named.items())
    return textwrap.fill(words, 112, initial_indent=f"# {scope}: ", subsequent_indent="#   ")
