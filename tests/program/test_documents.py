"""README.md and the pages of the guide: generated tables are fresh, names exist, and examples work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpuwatch import cli, config, model
from gpuwatch.cli import COMMANDS
from gpuwatch.commands.docs import FOLDER, PAGES, summary
from gpuwatch.commands.report_formats import report_lines
from gpuwatch.history import Use
from gpuwatch.recorder.use import EventCounts, UseLine, UseReport
from gpuwatch.ui.bindings import KEYS
from gpuwatch.ui.layout import fit_layout
from tests import CHECKOUT
from tests.docs import PACKAGE, TABLES, documents, filled
from tests.support.builders import EPOCH, GIB

README = (CHECKOUT / "README.md").read_text()
PAGE = {name: (FOLDER / f"{name}.md").read_text() for name in PAGES}

LONGEST = 300
"""Lines of the README: what is longer becomes a page."""
NARROW = 60
"""Cells of the narrowest terminal on which the list of pages is not wrapped."""


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE[page], re.DOTALL)


def test_the_pages_are_those_of_the_folder() -> None:
    assert sorted(PAGES) == sorted(file.stem for file in FOLDER.glob("*.md"))


@pytest.mark.parametrize("file", documents(), ids=lambda file: file.name)
def test_the_generated_tables_are_fresh(file: Path) -> None:
    assert file.read_text() == filled(file.read_text()), "write them with `python -m tests.docs`"


def test_every_table_that_is_generated_is_in_a_document() -> None:
    text = "".join(file.read_text() for file in documents())
    assert [name for name in TABLES if f"<!-- begin {name} -->" not in text] == []


@pytest.mark.parametrize("file", documents(), ids=lambda file: file.name)
def test_every_link_leads_to_a_file(file: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", file.read_text())
    assert [link for link in links if "://" not in link and not (file.parent / link).exists()] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LONGEST


@pytest.mark.parametrize("name", PAGES)
def test_the_list_of_pages_fits_a_narrow_terminal(name: str) -> None:
    assert len(f"{name:<15}{summary(name)}") < NARROW


def test_the_design_names_every_file_and_no_other() -> None:
    files = [file for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    design, names = PAGE["design"], {file.name for file in files if file.stat().st_size}
    assert [name for name in names if f"`{name}`" not in design] == []
    walked = re.findall(r"`([\w/]+/\w+\.py)`", design)
    assert walked
    assert [path for path in walked if not (PACKAGE / path).is_file()] == []


def test_the_example_is_a_whole_snapshot() -> None:
    (text,) = blocks("stream", "json")
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
        *(model.Declared, model.Declaration, model.Limit, model.Visible, model.Hint),
        *(
            model.Surroundings,
            model.Container,
            model.Pane,
            model.Notebook,
            model.Run,
        ),
    ],
    ids=str,
)
def test_every_field_of_the_stream_is_documented(part: Any) -> None:
    (section,) = re.findall(rf"^### {part.__name__.lower()}\n(.*?)^##", PAGE["stream"], re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(part.__struct_encode_fields__)


@pytest.mark.parametrize(
    "enum",
    [
        *(model.Health, model.SourceState, model.Presence, model.Reason),
        *(
            model.Kind,
            model.Basis,
            model.Confidence,
            model.Order,
            model.Margin,
            model.Knowledge,
        ),
    ],
    ids=str,
)
def test_every_word_of_the_stream_is_documented(enum: Any) -> None:
    for word in filter(None, enum):
        assert f"- `{word.value}`" in PAGE["stream"]


def test_every_flag_is_documented() -> None:
    flags = {flag for action in cli.parser()._actions for flag in action.option_strings if flag.startswith("--")}
    assert not [flag for flag in flags - {"--help", "--version"} if flag not in README]


def test_the_share_and_the_rule_shown_are_good(tmp_path: Path) -> None:
    file = tmp_path / "gpuwatch.toml"
    file.write_text(blocks("alerts", "toml")[0] + "".join(blocks("configuration", "toml")))
    shown = config.load(str(file))
    (share,), (rule,) = shown.shares, shown.rules
    assert set(shown.filters) == {"long", "lab"}
    assert (share.user, share.command, share.gpus, share.share) == ("ada", "train", (2,), 0.4)
    assert (rule.name, rule.when, rule.after) == ("hot GPU", "temperature>80 gpu:0-3", 120)


@pytest.mark.parametrize(("size", "words"), [((160, 50), "{} to {} processes show"), ((80, 24), "{} to {} processes")])
def test_so_many_processes_show(size: tuple[int, int], words: str) -> None:
    shown = [fit_layout(*size, n_gpus=8, n_alerts=alerts, n_rows=99).rows for alerts in range(9)]
    assert words.format(min(shown), max(shown)) in " ".join(README.split())
    assert words.format(min(shown), max(shown)) in PAGE["guide"]


def test_the_report_shown_is_what_is_printed_of_its_figures() -> None:
    def line(
        name: str, gpus: tuple[int, ...], part: float, hours: float, busy: float, gib: float, idle: float, *n: int
    ) -> UseLine:
        use = Use(3600 * hours, 3600 * busy, 0.0, 3600 * GIB * gib, 3600 * GIB * idle, gpu=3600 * part)
        return UseLine(name, use, gpus=gpus, events=EventCounts(*n))

    lines = [
        line("ada", (0, 2, 5, 6), 7.1, 11.4, 11.4, 415.0, 0.0, 1, 3, 3),
        line("eve", (3,), 2.0, 3.0, 0.0, 120.0, 120.0, 0, 1, 1),
        line("you", (4,), 1.4, 3.0, 3.0, 59.9, 35.9, 0, 1, 0),
    ]
    total = lines[0].use.plus(lines[1].use).plus(lines[2].use)
    kept = UseReport("user", EPOCH, "lab", lines, total=total, gpus=tuple(range(8)), events=EventCounts(1, 5, 4))
    assert "\n".join(report_lines(kept, EPOCH)[1:]) + "\n" in blocks("service", "text")[1]


def test_every_command_is_documented() -> None:
    assert not [name for name in COMMANDS if f"`gpuwatch {name} " not in README]


def test_every_key_in_the_table_is_bound() -> None:
    table = README[README.index("| key | what it does |") :].split("\n\n")[0]
    bound = {key for binding in KEYS for key in str(getattr(binding, "key", "")).split(",")}
    for key in re.findall(r"`([a-zA-Z?])`", table):
        assert {key, {"?": "question_mark"}.get(key, key)} & bound, key
