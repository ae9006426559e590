"""The README tells the truth where a machine can check it: its example, its schema, its flags, its keys."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpuwatch import cli, config, model
from gpuwatch import model as declarations
from gpuwatch.alerts.table import RULES
from gpuwatch.commands.arguments import COMMANDS
from gpuwatch.commands.report import report_lines
from gpuwatch.config.document import shown_defaults
from gpuwatch.config.keys import KEYS as KEYS_OF_FILE
from gpuwatch.history import Use
from gpuwatch.recorder.store import Events, Kept, Line
from gpuwatch.ui.bindings import KEYS
from gpuwatch.ui.layout import fit_layout
from tests import CHECKOUT
from tests.support.builders import EPOCH, GIB

README = (CHECKOUT / "README.md").read_text()


def block(language: str) -> str:
    """Give the first code block in a language."""
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_is_a_whole_snapshot() -> None:
    text = block("json")
    assert json.loads(model.encode(model.decode(text))) == json.loads(text)


@pytest.mark.parametrize(
    "part",
    [
        *(
            model.Snapshot,
            model.Gpu,
            model.Xid,
            model.Memory,
            model.Instance,
            model.Holding,
            model.Process,
            model.Unlisted,
        ),
        *(declarations.Declared, declarations.Declaration, declarations.Limit, declarations.Visible, declarations.Hint),
        *(
            model.Surroundings,
            model.Container,
            model.Pane,
            model.Notebook,
            model.Job,
        ),
    ],
    ids=str,
)
def test_every_field_of_the_stream_is_documented(part: Any) -> None:
    word = {"Instance": r"instance \(MIG\)"}.get(part.__name__, part.__name__.lower())
    row = re.search(rf"^\| {word} \| (.*) \|$", README, re.MULTILINE)
    assert row is not None
    named = re.findall(r"`([a-z_]+)`", row[1])
    assert set(part.__struct_fields__) <= set(named)


@pytest.mark.parametrize(
    "enum",
    [
        *(model.Health, model.SourceState, model.Presence, model.Reason),
        *(
            declarations.Kind,
            declarations.Basis,
            declarations.Confidence,
            declarations.Order,
            declarations.Margin,
            declarations.Knowledge,
        ),
    ],
    ids=str,
)
def test_every_word_of_the_stream_is_documented(enum: Any) -> None:
    for word in filter(None, enum):
        assert f"`{word.value}`" in README or f'`"{word.value}"`' in README


def test_every_flag_is_documented() -> None:
    flags = {flag for action in cli.parser()._actions for flag in action.option_strings if flag.startswith("--")}
    assert not [flag for flag in flags - {"--help", "--version"} if flag not in README]


def test_the_configuration_shown_is_the_default_one(tmp_path: Path) -> None:
    assert block("toml") == shown_defaults()
    file = tmp_path / "gpuwatch.toml"
    file.write_text(block("toml"))
    assert config.load(str(file)) == config.Config()
    assert set(KEYS_OF_FILE) == {
        f"{table}.{key}" if isinstance(value, dict) else table
        for table, value in tomllib.loads(block("toml")).items()
        for key in (value if isinstance(value, dict) else [table])
    }


def test_the_share_and_the_rule_shown_are_good(tmp_path: Path) -> None:
    file = tmp_path / "gpuwatch.toml"
    tables = [text for text in re.findall(r"```text\n(.*?)```", README, re.DOTALL) if text.startswith("[[")]
    file.write_text("\n".join(tables))
    shown = config.load(str(file))
    (share,), (rule,) = shown.shares, shown.rules
    assert (share.user, share.command, share.gpus, share.share) == ("ada", "train", (2,), 0.4)
    assert (rule.name, rule.above, rule.clear, rule.after) == ("hot memory", 80, 75, 120)


@pytest.mark.parametrize(("size", "words"), [((160, 50), "{} to {} processes show"), ((80, 24), "{} to {} processes")])
def test_so_many_processes_show(size: tuple[int, int], words: str) -> None:
    shown = [fit_layout(*size, n_gpus=8, n_alerts=alerts, n_rows=99).rows for alerts in range(9)]
    assert words.format(min(shown), max(shown)) in README


def test_the_report_shown_is_what_is_printed_of_its_figures() -> None:
    def line(name: str, gpus: tuple[int, ...], hours: float, busy: float, gib: float, idle: float, *n: int) -> Line:
        use = Use(3600 * hours, 3600 * busy, 0.0, 3600 * GIB * gib, 3600 * GIB * idle)
        return Line(name, use, gpus=gpus, events=Events(*n))

    lines = (
        line("ada", (0, 2, 5, 6), 11.4, 11.4, 415.0, 0.0, 1, 3, 3),
        line("eve", (3,), 3.0, 0.0, 120.0, 120.0, 0, 1, 1),
        line("you", (4,), 3.0, 3.0, 59.9, 35.9, 0, 1, 0),
    )
    total = lines[0].use.plus(lines[1].use).plus(lines[2].use)
    kept = Kept("user", EPOCH, "lab", lines, total=total, gpus=tuple(range(8)), events=Events(1, 5, 4))
    assert "\n".join(report_lines(kept, EPOCH)[1:]) + "\n```" in README


def test_every_command_is_documented() -> None:
    assert not [name for name in COMMANDS if f"`gpuwatch {name} " not in README]


def test_every_key_in_the_table_is_bound() -> None:
    table = README[README.index("| key | |") :].split("\n\n")[0]
    bound = {key for binding in KEYS for key in str(getattr(binding, "key", "")).split(",")}
    for key in re.findall(r"`([a-zA-Z?])`", table):
        assert {key, {"?": "question_mark"}.get(key, key)} & bound, key


def test_every_rule_stands_in_the_readme_as_it_is_in_the_code() -> None:
    section = README.split("## Alerts\n")[1].split("\n## ")[0]
    for one in RULES:
        keys = ", ".join(f"`{key}`" for key in one.keys) or "—"
        assert f"| {one.name} | {one.says} ({one.severity}) | {one.raised} | {one.cleared} | {keys} |" in section
