"""The tables that may stand in gpuwatch.toml any number of times: `[[share]]` and `[[rule]]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuwatch.alerts.rules.memory import OwnRule
from gpuwatch.config.lists import Gpus, rule_names
from gpuwatch.config.report import Report
from gpuwatch.config.values import (
    Choice,
    Duration,
    Fraction,
    Kind,
    Level,
    Number,
    Pattern,
    Size,
    Text,
    nearest,
    shown,
    toml_string,
)
from gpuwatch.declared.facts import Share
from gpuwatch.files import shown_path
from gpuwatch.units import MIB

SHARE: Final[Mapping[str, Kind]] = {
    "user": Text(least=1),
    "command": Pattern(),
    "gpu": Gpus(),
    "share": Fraction(),
    "memory": Size(least=MIB),
}

LONGEST_NAME: Final = 40
"""Characters of a rule's name."""
SCOPES: Final = ("gpu", "process", "user")

RULE: Final[Mapping[str, Kind]] = {
    "name": Text(least=1, most=LONGEST_NAME),
    "metric": Text(least=1),
    "scope": Choice(SCOPES),
    "above": Number(),
    "below": Number(),
    "clear": Number(),
    "for": Duration(0, 7 * 86400),
    "severity": Level(),
    "gpu": Gpus(),
    "user": Text(least=1),
}
"""How `above`, `below` and `clear` are written depends on the metric; see `amount`."""

FIELDS: Final = {"for": "after", "gpu": "gpus"}
"""Fields of `OwnRule` and `Share` that have another name in a file."""
AMOUNTS: Final = frozenset({"above", "below", "clear"})
"""Keys that are written in the unit of the metric."""
_PLAIN: Final = {name: kind for name, kind in RULE.items() if name not in AMOUNTS}


def amount(metric: str) -> Kind:
    """Give how a value of a metric is written: a size, a duration or a number."""
    from gpuwatch.alerts.alert import Unit
    from gpuwatch.alerts.rules.custom import METRICS

    unit = METRICS[metric].unit
    return Size() if unit in (Unit.BYTES, Unit.FREE) else Duration() if unit is Unit.SECONDS else Number()


def shares(report: Report, *, ceiling: bool) -> tuple[Share, ...]:
    """Read the `[[share]]` tables of a file; those that are wrong are noted and left out."""
    found = []
    where = shown_path(report.file)
    for number, table in _tables(report, "share"):
        before, named = len(report.problems), f"[[share]] number {number + 1}"
        values = _values(report, "share", number, table, SHARE)
        line = report.line("share", number)
        if ("share" in table) == ("memory" in table):
            both = "share and memory" if "share" in table else "neither share nor memory"
            report.wrong(f"{named}: found {both}; allowed is exactly one of them", line)
        if len(report.problems) == before:
            gpus = values.pop("gpu", ())
            found.append(Share(**values, gpus=gpus, where=where, line=line, ceiling=ceiling))
    return tuple(found)


def rules(report: Report) -> tuple[OwnRule, ...]:
    """Read the `[[rule]]` tables of a file; those that are wrong are noted and left out."""
    found: dict[str, OwnRule] = {}
    for number, table in _tables(report, "rule"):
        before = len(report.problems)
        values = _values(report, "rule", number, table, _PLAIN)
        for name in ("name", "metric"):
            if name not in table:
                report.wrong(f"{_named(number)}: found no {name}; a rule needs one", report.line("rule", number))
        if len(report.problems) == before:
            _check_name(report, number, values["name"], found)
            _check_metric(report, number, values)
        if len(report.problems) == before:
            values |= _amounts(report, number, table, amount(values["metric"]))
        if len(report.problems) == before:
            found[values["name"]] = OwnRule(**{FIELDS.get(name, name): value for name, value in values.items()})
    return tuple(found.values())


def _tables(report: Report, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give the tables of a name with their numbers, from 0 on; notes what is none."""
    tables = report.document.get(name, [])
    if not isinstance(tables, list):
        report.wrong(
            f"key {name}: found {shown(tables)}; allowed are tables, each with a line [[{name}]]", report.line(name)
        )
        return
    for number, table in enumerate(tables):
        if isinstance(table, dict):
            yield number, table
        else:
            words = f"[[{name}]] number {number + 1}: found {shown(table)}; allowed is a table"
            report.wrong(words, report.line(name, number))


def _values(
    report: Report, name: str, number: int, table: Mapping[str, Any], kinds: Mapping[str, Kind]
) -> dict[str, Any]:
    """Read the keys of one table that `kinds` has; those that no such table has are noted."""
    known = SHARE if name == "share" else RULE
    found = {}
    for key, raw in table.items():
        place, named = (name, number, key), f"{name}[{number + 1}].{key}"
        if key not in known:
            report.unknown(named, known, *place)
        elif key in kinds:
            found[key] = report.read(kinds[key], raw, named, *place)
    return found


def _named(number: int) -> str:
    return f"[[rule]] number {number + 1}"


def _check_name(report: Report, number: int, name: str, others: Mapping[str, OwnRule]) -> None:
    taken = (
        "a rule of gpuwatch itself"
        if name in {"gpuwatch", *rule_names()}
        else "another [[rule]]"
        if name in others
        else ""
    )
    if taken:
        words = f"key rule[{number + 1}].name: found {shown(name)}, which is {taken}; allowed is a name of its own"
        report.wrong(words, report.line("rule", number, "name"))


def _check_metric(report: Report, number: int, values: Mapping[str, Any]) -> None:
    from gpuwatch.alerts.rules.custom import METRICS

    metric, scope = values["metric"], values.get("scope", "gpu")
    if metric not in METRICS:
        near = nearest(metric, METRICS)
        hint = f" (did you mean {toml_string(near)}?)" if near else ""
        words = f"found {shown(metric)}{hint}; allowed is {', '.join(METRICS)}"
        report.wrong(f"key rule[{number + 1}].metric: {words}", report.line("rule", number, "metric"))
    elif scope not in METRICS[metric].scopes:
        allowed = " or ".join(map(toml_string, METRICS[metric].scopes))
        default = "" if "scope" in values else " (the default)"
        words = f"found {shown(scope)}{default} with the metric {metric}; allowed is {allowed}"
        line = report.line("rule", number, "scope") or report.line("rule", number, "metric")
        report.wrong(f"key rule[{number + 1}].scope: {words}", line)


def _amounts(report: Report, number: int, table: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Read what a metric is compared with."""
    found = {
        name: report.read(kind, table[name], f"rule[{number + 1}].{name}", "rule", number, name)
        for name in sorted(AMOUNTS)
        if name in table
    }
    if ("above" in table) == ("below" in table):
        both = "above and below" if "above" in table else "neither above nor below"
        words = f"{_named(number)}: found {both}; allowed is exactly one of them"
        report.wrong(words, report.line("rule", number))
        return found
    clear, above, below = (found.get(name) for name in ("clear", "above", "below"))
    wrong = clear is not None and ((above is not None and clear > above) or (below is not None and clear < below))
    if wrong:
        bound = f"at most {kind.write(above)}, the value of above" if above is not None else ""
        bound = bound or f"at least {kind.write(below)}, the value of below"
        words = f"key rule[{number + 1}].clear: found {kind.write(clear)}; allowed is {bound}"
        report.wrong(words, report.line("rule", number, "clear"))
    return found
