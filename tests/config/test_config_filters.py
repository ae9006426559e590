"""`[filters]` of gpuwatch.toml: names that the user chooses, each with the text of a filter."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.config import Config, load, reload
from gpuwatch.config.document import effective_text
from gpuwatch.config.reading import load_traced
from tests.config.test_config import loaded, refused, write


def test_filters_have_names_of_the_users_own(tmp_path: Path) -> None:
    config = loaded(
        tmp_path, '[filters]\nlong = "idle>30m !jupyter"\nBig_1-x = "mem>10GiB"\nlate = "rule:leak age<2h"\n'
    )
    assert config.filters == {"long": "idle>30m !jupyter", "Big_1-x": "mem>10GiB", "late": "rule:leak age<2h"}


def test_of_two_files_the_users_own_name_counts(tmp_path: Path) -> None:
    admin = write(tmp_path / "etc.toml", '[filters]\nbig = "mem>1GiB"\nlab = "gpu:0-3"\n')
    assert loaded(tmp_path, '[filters]\nbig = "mem>9GiB"\n', admin).filters == {"big": "mem>9GiB", "lab": "gpu:0-3"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[filters]\nbig = "mem>10"\n', ": key filters.big: found \"mem>10\": size '10' has no unit; write 10GiB"),
        ('[filters]\na = "@b"\nb = "mine"\n', ': key filters.a: found "@b": no saved filter is called b'),
        ("[filters]\na = 3\n", ": key filters.a: found 3; allowed is the text of a filter, such as"),
        ('[filters]\na = "  "\n', "allowed is the text of a filter"),
        ('[filters]\na = "\\u001b[2J"\n', "allowed is the text of a filter"),
        ('[filters]\n"a b" = "mine"\n', 'found the name "a b"; allowed are letters, digits, - and _, 40 at most'),
        ('filters = "mine"\n', ': key filters: found "mine"; allowed is a table [filters]'),
        ("[filters]\n" + "".join(f'n{n} = "mine"\n' for n in range(65)), "found 65 filters; allowed are 64"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, content: str, words: str) -> None:
    assert words in refused(tmp_path, content)


def test_what_is_in_effect_can_be_read_as_the_same(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.toml", '[filters]\nlong = "idle>30m"\n')
    config, origins = load_traced(str(file), administrators=tmp_path / "none")
    shown = effective_text(config, {name: str(origin) for name, origin in origins.items()})
    assert f"# {file}" in shown
    again = write(tmp_path / "again.toml", shown)
    assert load(str(again), administrators=tmp_path / "none").filters == {"long": "idle>30m"}


def test_a_change_is_named() -> None:
    assert reload(Config(), lambda: Config(filters={"a": "mine"})).changed == ("filters",)
