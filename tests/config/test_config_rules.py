"""gpuwatch.toml on its way to the rules: limits, `[[rule]]` tables, origins, lines of keys, reading it again."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.config import Config, load, reload
from gpuwatch.config.keys import all_keys, toml_string, value_of
from gpuwatch.config.reading import Lines, Origin, load_traced
from gpuwatch.errors import UsageError
from tests.support.builders import GIB, MIB


def write(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(0o644)
    return file


def loaded(tmp_path: Path, content: str, beneath: str = "") -> Config:
    admin = write(tmp_path / "etc" / "gpuwatch.toml", beneath)
    return load(str(write(tmp_path / "mine.toml", content)), administrators=admin)


def refused(tmp_path: Path, content: str) -> str:
    with pytest.raises(UsageError) as raised:
        loaded(tmp_path, content)
    return str(raised.value).removeprefix(f"{tmp_path}/mine.toml:")


# Limits


def test_without_a_file_the_limits_are_the_defaults() -> None:
    assert Config().limits() == Limits()


def test_every_limit_that_a_user_should_set_has_a_key() -> None:
    keys = {name.partition(".")[2] for name in all_keys() if name.startswith("alerts.")}
    assert keys == set(Limits.__struct_fields__) - {"allowances", "custom"}


def test_every_default_is_allowed_by_its_own_key() -> None:
    import tomllib

    for name, key in all_keys().items():
        value = value_of(Config(), name)
        assert key.read(tomllib.loads(f"key = {key.write(value)}")["key"]) == value, name


def test_limits_are_read_in_the_units_that_people_write(tmp_path: Path) -> None:
    content = """
[alerts]
off = ["power at limit", "XID"]
memory_warning = 12.5
memory_for = "500ms"
full_warning = "1h"
idle_after = 90
idle_memory = "512MiB"
temperature_margin = 3
power_for = "2h"
xid_critical = [48, 94, 94]
"""
    assert loaded(tmp_path, content).limits() == Limits(
        off=frozenset({"power at limit", "XID"}),
        memory_warning=12.5,
        memory_for=0.5,
        full_warning=3600,
        idle_after=90,
        idle_memory=512 * MIB,
        temperature_margin=3,
        power_for=7200,
        xid_critical=frozenset({48, 94}),
        xid_warning=frozenset(),
    )


# Rules of the user's own


def test_a_rule_with_every_key(tmp_path: Path) -> None:
    content = """
[[rule]]
name = "ada's memory"
metric = "memory"
scope = "process"
above = "20GiB"
clear = "18GiB"
for = "1min"
severity = "critical"
gpu = [0, "GPU-8932"]
user = "ada"
[[rule]]
name = "asleep"
metric = "idle"
scope = "process"
above = "2h"
[[rule]]
name = "cold"
metric = "utilization"
below = 5
clear = 5.5
"""
    assert loaded(tmp_path, content).limits().custom == (
        CustomRule(
            name="ada's memory",
            metric="memory",
            scope="process",
            above=20 * GIB,
            clear=18 * GIB,
            after=60,
            severity=Severity.CRITICAL,
            gpus=(0, "GPU-8932"),
            user="ada",
        ),
        CustomRule(name="asleep", metric="idle", scope="process", above=7200),
        CustomRule(name="cold", metric="utilization", below=5, clear=5.5),
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "1: [[rule]] number 1: found no name; a rule needs one"),
        ("name = 'a'", "1: [[rule]] number 1: found no metric; a rule needs one"),
        ("name = ''\nmetric = 'fan'", '2: key rule[1].name: found ""; allowed is text of 1 to 40 printable characters'),
        (f"name = '{'a' * 41}'\nmetric = 'fan'", "2: key rule[1].name: found "),
        ("name = 'XID'\nmetric = 'free'", '2: key rule[1].name: found "XID", which is a rule of gpuwatch itself'),
        ("name = 'gpuwatch'\nmetric = 'free'", '2: key rule[1].name: found "gpuwatch", which is a rule of gpuwatch'),
        ("name = 'a'\nmetric = 'temprature'", '3: key rule[1].metric: found "temprature" (did you mean'),
        ("name = 'a'\nmetric = 'free'\nscope = 'job'", '4: key rule[1].scope: found "job"; allowed is "gpu",'),
        ("name = 'a'\nmetric = 'fan'\nscope = 'user'", '4: key rule[1].scope: found "user" with the metric fan;'),
        ("name = 'a'\nmetric = 'idle'", '3: key rule[1].scope: found "gpu" (the default) with the metric idle;'),
        ("name = 'a'\nmetric = 'fan'", "1: [[rule]] number 1: found neither above nor below; allowed is exactly one"),
        ("name = 'a'\nmetric = 'fan'\nabove = 1\nbelow = 2", "1: [[rule]] number 1: found above and below; allowed is"),
        ("name = 'a'\nmetric = 'fan'\nabove = '20GiB'", '4: key rule[1].above: found "20GiB"; allowed is a number'),
        ("name = 'a'\nmetric = 'free'\nbelow = 20", "4: key rule[1].below: found 20; allowed is a size, 0 or 1MiB"),
        ("name = 'a'\nmetric = 'free'\nbelow = '20x'", '4: key rule[1].below: found "20x"; allowed is a size, 0 or'),
        ("name = 'a'\nmetric = 'fan'\nabove = 80\nclear = 81", "5: key rule[1].clear: found 81; allowed is at most"),
        ("name = 'a'\nmetric = 'free'\nbelow = '2GiB'\nclear = '1GiB'", 'found "1GiB"; allowed is at least "2GiB",'),
        ("name = 'a'\nmetric = 'fan'\nabove = nan", "4: key rule[1].above: found nan; allowed is a number"),
        ("name = 'a'\nmetric = 'fan'\nabove = 1\nfor = '8d'", '5: key rule[1].for: found "8d"; allowed is seconds, or'),
        ("name = 'a'\nmetric = 'fan'\nabove = 1\nabvoe = 1", "5: unknown key rule[1].abvoe; did you mean above?"),
        ("name = 'a'\nmetric = 'fan'\nabove = 1\nseverity = 2", "5: key rule[1].severity: found 2; allowed is"),
        ("name = 3\nmetric = 4\nabove = 1", "2: key rule[1].name: found 3; allowed is text of 1 to 40"),
    ],
)
def test_a_bad_rule_is_named_with_its_line_and_key(tmp_path: Path, content: str, said: str) -> None:
    assert said in refused(tmp_path, f"[[rule]]\n{content}\n")


def test_a_file_has_64_rules_at_most(tmp_path: Path) -> None:
    rules = "".join(f"[[rule]]\nname = 'r{n}'\nmetric = 'fan'\nabove = 1\n" for n in range(64))
    assert len(loaded(tmp_path, rules).rules) == 64
    assert refused(tmp_path, rules + "[[rule]]\n").endswith("key rule: found 65 rules; allowed are 64")


def test_a_name_is_given_once_in_a_file_and_replaces_the_administrators(tmp_path: Path) -> None:
    one = "[[rule]]\nname = 'a'\nmetric = 'fan'\nabove = {}\n"
    assert refused(tmp_path, one.format(1) * 2).startswith('6: key rule[2].name: found "a", which is another [[rule]];')
    other = one.format(9).replace("'a'", "'b'")
    rules = loaded(tmp_path, one.format(1), one.format(3) + other).rules
    assert [(rule.name, rule.above) for rule in rules] == [("a", 1), ("b", 9)]


# Where a value comes from


def test_each_value_is_traced(tmp_path: Path) -> None:
    rule = "[[rule]]\nname = '{}'\nmetric = 'fan'\nabove = 1\n"
    admin = write(tmp_path / "etc.toml", "bell = true\n[alerts]\nfull_for = 1\nquiet = 2\n" + rule.format("theirs"))
    mine = write(tmp_path / "mine.toml", "\nalerts.quiet = 3\n" + rule.format("mine"))
    config, origins = load_traced(str(mine), administrators=admin)
    assert config == load(str(mine), administrators=admin)
    assert set(origins) == {*all_keys(), "rule theirs", "rule mine"}
    shown = {name: str(origin) for name, origin in origins.items() if origin != Origin()}
    assert shown == {
        "bell": f"{admin}:1",
        "alerts.full_for": f"{admin}:3",
        "alerts.quiet": f"{mine}:2",
        "rule theirs": f"{admin}:5",
        "rule mine": f"{mine}:3",
    }
    assert (str(Origin()), str(Origin(flag="--bell"))) == ("default", "--bell")


def test_a_file_in_the_home_folder_is_named_from_there(own_home: Path, tmp_path: Path) -> None:
    write(own_home / "config" / "gpuwatch" / "gpuwatch.toml", "bell = true\ninterval = 'x'\n")
    assert os.environ["HOME"] == str(own_home)
    with pytest.raises(UsageError, match=r"^~/config/gpuwatch/gpuwatch\.toml:2: key interval: found \"x\";"):
        load(None, administrators=tmp_path / "none")


# Reading it again


def test_reading_again_says_what_changed(tmp_path: Path) -> None:
    old = loaded(tmp_path, "bell = true\n[notify]\nurls = []\n")
    content = "[alerts]\nquiet = 1\n[[share]]\nshare = 0.5\n[[rule]]\nname = 'a'\nmetric = 'fan'\nabove = 1\n"
    again = reload(old, lambda: loaded(tmp_path, content))
    assert (again.changed, again.error) == (("bell", "alerts.quiet", "share", "rule"), "")
    assert again.config.alerts.quiet == 1
    assert reload(again.config, lambda: loaded(tmp_path, content)).changed == ()


def test_a_file_that_has_become_wrong_keeps_the_old(tmp_path: Path) -> None:
    old = loaded(tmp_path, "bell = true\n")
    again = reload(old, lambda: loaded(tmp_path, "bell = 3\n"))
    assert (again.config, again.changed) == (old, ())
    assert again.error == f"{tmp_path}/mine.toml:1: key bell: found 3; allowed is true or false"


def test_a_file_that_is_gone_keeps_the_old(tmp_path: Path) -> None:
    old = msgspec.structs.replace(Config(), bell=True)
    again = reload(old, lambda: load(str(tmp_path / "gone.toml"), administrators=tmp_path / "none"))
    assert (again.config, again.error) == (old, f"--config: there is no file {tmp_path / 'gone.toml'}")


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
