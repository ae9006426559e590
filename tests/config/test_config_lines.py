"""On which line of gpuwatch.toml a key stands: the right one, or none."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.config.lines import Place, lines_of
from gpuwatch.config.values import toml_string


def lines(content: str) -> dict[Place, int]:
    return lines_of(content, tomllib.loads(content))


def test_keys_tables_and_arrays_of_tables() -> None:
    content = """\
# a = 0
a = 1
 b.c = 2  # b.d = 3

[table]
"d e" = "x"
'f' = 1979-05-27 07:32:00
[table.deeper]
g = -1.5e3
[[rule]]
name = "one"
[rule.inside]
h = true
[[rule]]
name = "two"
"""
    assert lines(content) == {
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 3,
        ("table",): 5,
        ("table", "d e"): 6,
        ("table", "f"): 7,
        ("table", "deeper"): 8,
        ("table", "deeper", "g"): 9,
        ("rule",): 10,
        ("rule", 0): 10,
        ("rule", 0, "name"): 11,
        ("rule", 0, "inside"): 12,
        ("rule", 0, "inside", "h"): 13,
        ("rule", 1): 14,
        ("rule", 1, "name"): 15,
    }


def test_arrays_and_inline_tables_over_several_lines() -> None:
    content = """\
a = [ # ]
  1, "]",

  [2, 3],  # a comment
  { b = 4, 'c.d' = [5], e.f = "}" },
]
g = 1
"""
    found = lines(content)
    assert [found["a", number] for number in range(4)] == [2, 2, 4, 5]
    assert (found["a", 3, "c.d"], found["a", 3, "e", "f"], found["g",]) == (5, 5, 7)


@pytest.mark.parametrize(
    "text",
    [
        '"""\na = 1\n[b]\n"""',
        "'''\na = 1\n[b]\n'''",
        '"""\na = 1 \\"""\nb = 2"""',
        '"""a""b\n"""""',
        '""""quoted""""',
        "''''quoted'''''",
        '""',
        "''",
        '"\\\\"',
        '"# no comment"',
        "'[[rule]]'",
        '"\\""',
    ],
)
def test_what_a_string_says_is_no_key(text: str) -> None:
    found = lines(f"first = {text}\nlast = 1\n")
    assert found == {("first",): 1, ("last",): 2 + text.count("\n")}


def test_names_in_quotes_are_what_they_say() -> None:
    assert lines('["\\u0061.b"."c"]\n"x\\ty" = 1\n') == {
        ("a.b",): 1,
        ("a.b", "c"): 1,
        ("a.b", "c", "x\ty"): 2,
    }


def test_where_the_two_readers_differ_there_is_no_line() -> None:
    document = tomllib.loads("a = 1\nb = 2\n")
    assert lines_of("a = 1\n", document) == {}
    assert lines_of("a = 1\nb = 2\nc = 3\n", document) == {}
    assert lines_of("a = 1\nb = 'x\n", document) == {}
    assert lines_of("a = " + "[" * 100_000, document) == {}


@given(st.text())
def test_nothing_that_it_is_given_makes_it_raise(content: str) -> None:
    lines_of(content, {"a": 1})


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
def test_each_key_stands_where_it_was_written(tables: dict[str, list[dict[str, Any]]]) -> None:
    content = ""
    expected: dict[Place, int] = {}
    for name, ones in tables.items():
        for number, one in enumerate(ones):
            content += f"# {toml_string(name)} = 1\n\n [[ {toml_string(name)} ]]\n"
            expected[name, number] = content.count("\n")
            for key, value in one.items():
                expected[name, number, key] = content.count("\n") + 1
                content += f"{toml_string(key)} = {value} # {name!a} = 1\n"
    found = lines(content)
    assert {place: found[place] for place in expected} == expected
