"""README.md and the pages of the guide: generated tables are fresh, names exist, and examples work."""

from __future__ import annotations

import json
import re
import subprocess
from argparse import SUPPRESS
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuwatch.model
from gpuwatch import cli
from gpuwatch.alerts.rules import RULE_NAMES
from gpuwatch.commands.docs import FOLDER, PAGES
from gpuwatch.commands.reference import COMMANDS
from gpuwatch.config import load
from gpuwatch.model import snapshot as model
from gpuwatch.recorder.messages import check_urls
from tests import CHECKOUT
from tests.docs import PACKAGE, TABLES, documents, filled

DESIGN = (PACKAGE / "README.md").read_text()
PAGE = {name: (FOLDER / f"{name}.md").read_text() for name in PAGES}


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE[page], re.DOTALL)


def test_the_pages_are_those_of_the_folder() -> None:
    assert sorted(PAGES) == sorted(file.stem for file in FOLDER.glob("*.md"))


@pytest.mark.parametrize("file", documents(), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_generated_tables_are_fresh(file: Path) -> None:
    assert file.read_text() == filled(file.read_text()), "write them with `python -m tests.docs`"


def test_every_table_that_is_generated_is_in_a_document() -> None:
    text = "".join(file.read_text() for file in documents())
    assert [name for name in TABLES if f"<!-- begin {name} -->" not in text] == []


@pytest.mark.parametrize("file", documents(), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_link_leads_to_a_file(file: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", file.read_text())
    assert [link for link in links if "://" not in link and not (file.parent / link).exists()] == []


def headings(text: str) -> set[str]:
    """Return the headings of a page below its title, as they are shown."""
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {heading.replace("`", "") for heading in re.findall(r"(?m)^##+ (.+)$", without_code)}


def rows(text: str) -> set[str]:
    """Return the first two cells of each row of the tables, without their heads."""
    body = re.sub(r"(?m)^\|.*\n\|[-:| ]+\|$", "", text)
    return {" ".join(row.split()) for row in re.findall(r"(?m)^\| ([^|]+\|[^|]+)\|", body)}


@pytest.mark.parametrize("parts", [headings, rows])
def test_no_heading_and_no_row_is_on_two_pages(parts: Callable[[str], set[str]]) -> None:
    counts = Counter(part for file in documents() for part in parts(file.read_text()))
    assert [part for part, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("file", documents(), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_anchor_leads_to_a_heading(file: Path) -> None:
    links = re.findall(r"\]\((?!\w+://)([^)#]*)#([^)]+)\)", file.read_text())
    assert [
        (page, anchor) for page, anchor in links if anchor not in anchors(file.parent / page if page else file)
    ] == []


def anchors(file: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings(file.read_text())}


def test_the_table_of_alerts_has_every_rule() -> None:
    table = PAGE["alerts"].partition("\n## Rules\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)) == sorted(RULE_NAMES)


def test_the_example_of_mail_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config,) = (block for block in blocks("alerts", "toml") if "[notify]" in block)
    (body,) = (block for block in blocks("alerts", "sh") if block.startswith("#!"))
    file, script, mail = (tmp_path / name for name in ("gpuwatch.toml", "gpu-mail", "mail"))
    for path, text in ((file, config), (script, body), (mail, '#!/bin/sh\nprintf "%s\\n" "$@"; cat\n')):
        path.write_text(text)
        path.chmod(0o700)
    notify = load(str(file), administrators=tmp_path / "none").notify
    assert (notify.sends, notify.command) == (True, ("~/bin/gpu-mail",))
    assert [*check_urls([*notify.urls, *re.findall(r'"(mailto:[^"]+)"', config)])] == ["", ""]
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    message = b'{"rule": "overbooked", "message": "\xe2\x96\xb2 box3: GPU 4 overbooked\\nby ada"}\n'
    sent = subprocess.run([script], input=message, capture_output=True, check=True).stdout.decode()
    assert sent.splitlines()[2:] == ["ada@example.org", "▲ box3: GPU 4 overbooked", "by ada"]


def test_the_design_names_every_file_and_no_other() -> None:
    files = [file for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    design, names = DESIGN, {file.name for file in files if file.stat().st_size}
    assert [name for name in names if f"`{name}`" not in design] == []


@pytest.mark.parametrize(
    ("walk", "most"), [("A process's memory, from NVML", 10), ("An alert, from its rule", 8), ("`K`, from the key", 8)]
)
def test_a_walk_through_the_files_is_short(walk: str, most: int) -> None:
    steps = DESIGN.partition(f"### {walk}")[2].partition("\n#")[0]
    files = re.findall(r"`([\w/]+\.py)`", steps)
    assert len(files) == len(set(files)) == len(re.findall(r"(?m)^\d+\. ", steps)) <= most
    assert [path for path in files if not (PACKAGE / path).is_file()] == []


def test_the_model_hands_on_what_the_guide_promises() -> None:
    promised = set(re.findall(r"gpuwatch\.model\.(\w+)", PAGE["python"]))
    assert promised
    assert [name for name in promised if getattr(gpuwatch.model, name) is not getattr(model, name)] == []


def test_the_example_is_a_whole_snapshot() -> None:
    (text,) = blocks("json", "json")
    assert json.loads(model.encode(model.decode(text))) == json.loads(text)


STRUCTS = (
    *(model.Snapshot, model.Gpu, model.Xid, model.Memory, model.Instance, model.Holding, model.Process),
    *(model.Unlisted, model.Declared, model.Declaration, model.Limit, model.Visible, model.Hint),
    *(model.ProcessContext, model.Container, model.Pane, model.Notebook, model.Run),
)
ENUMS = (
    *(model.Health, model.SourceState, model.Presence, model.Reason, model.Kind),
    *(model.Basis, model.Confidence, model.Order, model.Margin, model.Knowledge),
)


@pytest.mark.parametrize("part", STRUCTS, ids=str)
def test_every_field_of_the_stream_is_documented(part: Any) -> None:
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", part.__name__).lower()
    (section,) = re.findall(rf"^### {title}\n(.*?)^##", PAGE["json"], re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(part.__struct_encode_fields__)


@pytest.mark.parametrize("enum", ENUMS, ids=str)
def test_every_word_of_the_stream_is_documented(enum: Any) -> None:
    for word in filter(None, enum):
        assert f"- `{word.value}`" in PAGE["json"]


def test_every_flag_is_documented() -> None:
    actions = [action for action in cli.parser()._actions if action.help != SUPPRESS]
    flags = {flag for action in actions for flag in action.option_strings if flag.startswith("--")}
    assert not [flag for flag in flags - {"--help", "--version"} if flag not in PAGE["commands"]]


def test_every_command_is_documented() -> None:
    assert not [name for name in COMMANDS if f"`gpuwatch {name}` " not in PAGE["commands"]]


def test_the_readme_has_the_command_that_runs_the_tests_of_a_fresh_clone() -> None:
    section = (CHECKOUT / "README.md").read_text().partition("\n## Tests\n")[2].partition("\n## ")[0]
    (command,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert command.rstrip().endswith("python -m tests")
