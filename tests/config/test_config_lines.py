"""Lines of the keys of gpuwatch.toml: the right one, or none."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.config.keys import toml_string
from gpuwatch.config.reading import Lines


def lines(content: str) -> Lines:
    return Lines(content, tomllib.loads(content))


def test_keys_tables_and_arrays_of_tables() -> None:
    content = """\
# a = 0
a = 1
 b.c = 2  # b.d = 3
i = { x = 1, y = 2 }

[table]
'f' = 1979-05-27 07:32:00
g = 4
[table.deeper]
h = -1.5e3
[[rule]]
name = "one"
[rule.inside]
name = "none"
[[ rule ]]  # the second
name = "two"
"""
    found = lines(content)
    expected = {
        ("a",): 2,
        ("b", "c"): 3,
        ("i", "x"): 4,
        ("i", "y"): 4,
        ("table",): 6,
        ("table", "g"): 8,
        ("rule", 0): 11,
        ("rule", 0, "name"): 12,
        ("rule", 1): 15,
        ("rule", 1, "name"): 16,
    }
    assert {place: found.find(*place) for place in expected} == expected


def test_what_is_not_found_once_and_written_plainly_has_no_line() -> None:
    content = '"a" = 1\nx.b = 1\nz."q".e = 1\ny = [ { b = 2 }, { c = 3 } ]\n["tab\\u006ce"]\nb = 3\n[[two]]\n'
    found = lines(content)
    for place in (
        ("a",),
        ("b",),
        ("c",),
        ("table",),
        ("table", "b"),
        ("none",),
        ("e",),
        ("z", "e"),
        ("two", "b"),
        ("two", 0, "b"),
    ):
        assert found.find(*place) == 0, place
    assert found.find("y", 1) == found.find("y", 1, "c") == found.find("y") == 4
    assert Lines("[[a]]\n", {"a": [{}, {}]}).find("a", 0) == 0


@pytest.mark.parametrize(
    "text",
    [
        '"""\na = 1\nlast = 0\n[b]\n"""',
        "'''\na = 1\nlast = 0\n[b]\n'''",
        '"""\na = 1 \\"""\nlast = 2"""',
        '"""a""b\n"""""',
        '""""quoted""""',
        "''''quoted'''''",
        '""',
        "''",
        '"\\\\"',
        '"# no comment"',
        "'[[rule]]'",
        '"\\""',
        "[ # last = 0\n  1,\n]",
    ],
)
def test_what_a_string_or_a_comment_says_is_no_key(text: str) -> None:
    found = lines(f"first = {text}\nlast = 1\n")
    assert (found.find("first"), found.find("last")) == (1, 2 + text.count("\n"))
    assert found.find("b") == found.find("rule") == 0


@given(st.text())
def test_nothing_that_it_is_given_makes_it_raise(content: str) -> None:
    found = Lines(content, {"a": 1, "b": [{}]})
    assert found.find("a") >= found.find("a", "b") >= 0 <= found.find("b", 0, "c")


_NAMES = st.sampled_from(["a", "b", "memory_for", "x-y", "c d", "[[a]]", "é", ""])
_TEXTS = st.text(st.sampled_from("ab\"'\\\n=[]{}#, "), max_size=12)


def _string(text: str) -> st.SearchStrategy[str]:
    forms = [toml_string(text)]
    if "'" not in text and "\n" not in text:
        forms.append(f"'{text}'")
    if "'''" not in text and not text.startswith("\n") and not text.endswith("'"):
        forms.append(f"'''{text}'''")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    forms.append(f'"""\n{escaped}"""')
    return st.sampled_from(forms)


_LITERALS = st.one_of(_TEXTS.flatmap(_string), st.integers().map(str), st.sampled_from(["true", "nan", "1979-05-27"]))
_LISTS = st.lists(_LITERALS, max_size=3).map(lambda items: "[ # [\n" + ",\n".join(items) + "\n]")
_VALUES = st.one_of(_LITERALS, _LISTS)


@given(
    st.dictionaries(_NAMES, st.lists(st.dictionaries(_NAMES, _VALUES, max_size=4), min_size=1, max_size=3), max_size=3)
)
def test_each_plain_key_stands_where_it_was_written_and_no_other_is_found(
    tables: dict[str, list[dict[str, Any]]],
) -> None:
    def plain(name: str) -> bool:
        return name in ("a", "b", "memory_for", "x-y")

    def written(name: str) -> str:
        return name if plain(name) else toml_string(name)

    content = ""
    expected: dict[tuple[str | int, ...], int] = {}
    for name, ones in tables.items():
        for number, one in enumerate(ones):
            content += f"# {written(name)} = 1\n\n [[ {written(name)} ]]\n"
            expected[name, number] = content.count("\n") * plain(name)
            for key, value in one.items():
                expected[name, number, key] = (content.count("\n") + 1) * (plain(name) and plain(key))
                content += f"{written(key)} = {value} # {name!a} = 1\n"
    found = lines(content)
    assert {place: found.find(*place) for place in expected} == expected
