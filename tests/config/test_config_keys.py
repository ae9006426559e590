"""[keys] in gpuwatch.toml: keys by the actions' ids, sets of keys, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.config import Config, load
from gpuwatch.config.keymap import DEFAULT_KEYS, PRESETS, RESERVED, Keys, actions, clash
from gpuwatch.errors import UsageError

NOBODY = Path("/nonexistent")


def read(tmp_path: Path, content: str, administrators: str | None = None) -> Config:
    own = tmp_path / "gpuwatch.toml"
    own.write_text(content)
    other = NOBODY
    if administrators is not None:
        other = tmp_path / "etc.toml"
        other.write_text(administrators)
        other.chmod(0o644)
    return load(str(own), administrators=other)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_key_of_a_set_has_two_meanings(preset: str) -> None:
    keys = PRESETS[preset]
    assert clash(keys) is None
    assert keys.preset == preset
    assert all(keys.of(action) for action in actions())


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ('pause = "x"', {"pause": ("x",)}),
        ('pause = ["F5", "Space", "ctrl+R"]', {"pause": ("f5", "space", "ctrl+r")}),
        ('clear = ["Esc", "PgUp"]\npageup = "["', {"clear": ("escape", "pageup"), "pageup": ("[",)}),
        ("retry = []", {"retry": ()}),
        ('pause = "m"\nmine = "p"', {"pause": ("m",), "mine": ("p",)}),
    ],
)
def test_an_action_has_the_keys_of_the_file(tmp_path: Path, written: str, keys: dict[str, tuple[str, ...]]) -> None:
    found = read(tmp_path, f"[keys]\n{written}\n").keys
    for action in actions():
        assert found.of(action) == keys.get(action, DEFAULT_KEYS.of(action))


def test_a_set_of_keys_is_under_the_keys_of_the_files(tmp_path: Path) -> None:
    found = read(tmp_path, '[keys]\npreset = "nvitop"\nfilter = "/"\nreverse = "r"\nretry = "f5"\n').keys
    assert (found.filter, found.reverse, found.retry) == (("/",), ("r",), ("f5",))
    assert found.sort_left == (",",)
    below = read(tmp_path, '[keys]\npeople = "x"\n', '[keys]\npreset = "nvitop"\n').keys
    assert (below.people, below.reverse) == (("x",), ("/",))
    above = read(tmp_path, '[keys]\npreset = "gpuwatch"\n', '[keys]\npreset = "nvitop"\n').keys
    assert above == Keys()


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ('peple = "x"', ": unknown key keys.peple; did you mean people?"),
        ('pause = "Sapce"', ': key keys.pause: found "Sapce"; allowed is a key or a list of keys, such as "x"'),
        ("pause = 3", ": key keys.pause: found 3; allowed is a key or a list"),
        ('pause = ["x", ""]', ': key keys.pause: found ""; allowed is a key or a list'),
        ('preset = "vim"', ': key keys.preset: found "vim"; allowed is "gpuwatch" or "nvitop"'),
        ('mine = "f5"\npause = "m"\nmine2 = "x"', ": unknown key keys.mine2; did you mean mine?"),
        ('people = "p"', ': key keys.people: found "p", which is the key of pause too; allowed is a key of no other'),
        ('tree = "x"\npause = "x"', ': key keys.pause: found "x", which is the key of tree too'),
        ('preset = "nvitop"\npeople = ","', ': key keys.people: found ",", which is the key of sort_left too'),
        *[(f'pause = "{key}"', f'found "{key}", which is always the key to {what};') for key, what in RESERVED.items()],
    ],
)
def test_a_mistake_is_named(tmp_path: Path, written: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, f"[keys]\n{written}\n")
    assert words in str(error.value)
    assert str(error.value).count("\n") == 0


def test_a_clash_with_the_administrators_file_is_the_own_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, '\n[keys]\npause = "x"\n', '[keys]\ntree = "x"\n')
    assert f'{tmp_path}/gpuwatch.toml: key keys.pause: found "x", which is the key of tree too' in str(error.value)
