"""The README tells the truth where a machine can check it: its example, its schema, its flags, its keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch import cli, config, model
from gpuwatch.commands.arguments import COMMANDS
from gpuwatch.ui.keys import KEYS
from gpuwatch.ui.layout import fit_layout

README = (Path(__file__).parent.parent / "README.md").read_text()


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
        *(model.Snapshot, model.Gpu, model.Memory, model.Instance, model.Holding, model.Process),
        *(model.Declared, model.Declaration, model.Limit, model.Visible, model.Hint),
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
        *(model.Kind, model.Basis, model.Confidence, model.Order, model.Margin, model.Knowledge),
    ],
    ids=str,
)
def test_every_word_of_the_stream_is_documented(enum: Any) -> None:
    for word in filter(None, enum):
        assert f"`{word.value}`" in README or f'`"{word.value}"`' in README


def test_every_flag_is_documented() -> None:
    flags = {flag for action in cli.parser()._actions for flag in action.option_strings if flag.startswith("--")}
    assert not [flag for flag in flags - {"--help", "--version"} if flag not in README]


def test_the_configuration_shown_is_the_default_one() -> None:
    assert msgspec.toml.decode(block("toml"), type=config.Config) == config.Config()
    assert set(msgspec.toml.decode(block("toml"))) == set(config.Config.__struct_fields__) - {"shares"}


def test_the_share_shown_is_one(tmp_path: Path) -> None:
    file = tmp_path / "gpuwatch.toml"
    file.write_text(block("text"))
    (share,) = config.load(str(file)).shares
    assert (share.user, share.command, share.gpus, share.share) == ("ada", "train", (2,), 0.4)


@pytest.mark.parametrize(("size", "words"), [((160, 50), "{} to {} processes show"), ((80, 24), "{} to {} processes")])
def test_so_many_processes_show(size: tuple[int, int], words: str) -> None:
    shown = [fit_layout(*size, n_gpus=8, n_alerts=alerts, n_rows=99).rows for alerts in range(9)]
    assert words.format(min(shown), max(shown)) in README


def test_every_command_is_documented() -> None:
    assert not [name for name in COMMANDS if f"`gpuwatch {name} " not in README]


def test_every_key_in_the_table_is_bound() -> None:
    table = README[README.index("| key | |") :].split("\n\n")[0]
    bound = {key for binding in KEYS for key in str(getattr(binding, "key", "")).split(",")}
    for key in re.findall(r"`([a-zA-Z?])`", table):
        assert {key, {"?": "question_mark"}.get(key, key)} & bound, key
