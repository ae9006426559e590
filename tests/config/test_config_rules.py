"""gpuwatch.toml on its way to the rules: limits, `[[rule]]` tables, origins, reading it again."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec
import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.config import Config, load, reload
from gpuwatch.config.keys import all_keys, value_of
from gpuwatch.config.reading import load_traced
from gpuwatch.errors import UsageError
from tests.support.builders import MIB


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
    return str(raised.value).removeprefix(f"{tmp_path}/mine.toml: ")


# Limits


def test_without_a_file_the_limits_are_the_defaults() -> None:
    assert Config().limits() == Limits()


def test_every_limit_that_a_user_should_set_has_a_key() -> None:
    keys = {name.partition(".")[2] for name in all_keys() if name.startswith("alerts.")}
    assert keys == set(Limits.__struct_fields__) - {"allowances", "custom"}


def test_every_default_is_allowed_by_its_own_key() -> None:

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
on = "process"
when = "mem>20GiB gpu:0,GPU-8932 user:ada"
for = "1min"
severity = "critical"
message = "too much"
[[rule]]
name = "cold"
when = "utilization<5"
"""
    assert loaded(tmp_path, content).limits().custom == (
        CustomRule(
            name="ada's memory",
            on="process",
            when="mem>20GiB gpu:0,GPU-8932 user:ada",
            after=60,
            severity=Severity.CRITICAL,
            message="too much",
        ),
        CustomRule(name="cold", when="utilization<5"),
    )


@pytest.mark.parametrize(
    ("old", "on", "when", "lost"),
    [
        ("metric = 'temperature'\nabove = 80\nclear = 75", "gpu", "temperature>80", " (clear is no longer read)"),
        ("metric = 'memory'\nscope = 'user'\nabove = '20GiB'\ngpu = [0, 1]", "user", "mem>20GiB gpu:0,1", ""),
        ("metric = 'free'\nbelow = 1073741824\nuser = 'ada'", "gpu", "free<1024MiB user:ada", ""),
        ("metric = 'idle'\nscope = 'process'\nabove = 7200\nfor = 5", "process", "idle>7200", ""),
    ],
)
def test_a_rule_of_version_0_1_is_translated_with_a_warning(
    tmp_path: Path, old: str, on: str, when: str, lost: str
) -> None:
    config = loaded(tmp_path, f"[[rule]]\nname = 'a'\n{old}\n")
    (rule,), (warning,) = config.rules, config.warnings
    assert (rule.on, rule.when, rule.after) == (on, when, 5 if "for" in old else 10)
    assert warning.endswith(f'is written as in version 0.1; write on = "{on}", when = "{when}"{lost}')


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "[[rule]] number 1: found no name; a rule needs one"),
        ("name = 'a'", "[[rule]] number 1: found no when; a rule needs one"),
        ("name = ''\nwhen = 'fan>1'", 'key rule[1].name: found ""; allowed is text of 1 to 40 printable characters'),
        (f"name = '{'a' * 41}'\nwhen = 'fan>1'", "key rule[1].name: found "),
        ("name = 'XID'\nwhen = 'fan>1'", 'key rule[1].name: found "XID", which is a rule of gpuwatch itself'),
        ("name = 'gpuwatch'\nwhen = 'fan>1'", 'key rule[1].name: found "gpuwatch", which is a rule of gpuwatch'),
        ("name = 'a'\nwhen = 'temprature>80'", 'key rule[1].when: found "temprature>80": temprature is no figure; did'),
        ("name = 'a'\nwhen = 'gpu:1'", 'key rule[1].when: found "gpu:1": it compares nothing; mem, free, unknown'),
        ("name = 'a'\nwhen = 'fan>1 train'", "train is no term of a rule about GPUs or users"),
        ("name = 'a'\nwhen = 'power>20GiB'", '"20gib" is not understood; write a number'),
        ("name = 'a'\nwhen = 'idle>1h'", "idle is no figure of this list; gpu:, user:, mem, free,"),
        ("name = 'a'\non = 'job'\nwhen = 'fan>1'", 'key rule[1].on: found "job"; allowed is "gpu",'),
        ("name = 'a'\nwhen = 'fan>1'\nfor = '8d'", 'key rule[1].for: found "8d"; allowed is seconds, or'),
        ("name = 'a'\nwhen = 'fan>1'\nwehn = 1", "unknown key rule[1].wehn; did you mean when?"),
        ("name = 'a'\nwhen = 'fan>1'\nseverity = 2", "key rule[1].severity: found 2; allowed is"),
        ("name = 3\nwhen = 4", "key rule[1].name: found 3; allowed is text of 1 to 40"),
    ],
)
def test_a_bad_rule_is_named_with_its_line_and_key(tmp_path: Path, content: str, said: str) -> None:
    assert said in refused(tmp_path, f"[[rule]]\n{content}\n")


def test_a_file_has_64_rules_at_most(tmp_path: Path) -> None:
    rules = "".join(f"[[rule]]\nname = 'r{n}'\nwhen = 'fan>1'\n" for n in range(64))
    assert len(loaded(tmp_path, rules).rules) == 64
    assert refused(tmp_path, rules + "[[rule]]\n").endswith("key rule: found 65 rules; allowed are 64")


def test_a_name_is_given_once_in_a_file_and_replaces_the_administrators(tmp_path: Path) -> None:
    one = "[[rule]]\nname = 'a'\nwhen = 'fan>{}'\n"
    assert refused(tmp_path, one.format(1) * 2).startswith('key rule[2].name: found "a", which is another [[rule]];')
    other = one.format(9).replace("'a'", "'b'")
    rules = loaded(tmp_path, one.format(1), one.format(3) + other).rules
    assert [(rule.name, rule.when) for rule in rules] == [("a", "fan>1"), ("b", "fan>9")]


# Where a value comes from


def test_each_value_is_traced(tmp_path: Path) -> None:
    rule = "[[rule]]\nname = '{}'\nwhen = 'fan>1'\n"
    admin = write(tmp_path / "etc.toml", "bell = true\n[alerts]\nfull_for = 1\nquiet = 2\n" + rule.format("theirs"))
    mine = write(tmp_path / "mine.toml", "\nalerts.quiet = 3\n" + rule.format("mine"))
    config, origins = load_traced(str(mine), administrators=admin)
    assert config == load(str(mine), administrators=admin)
    assert origins == {
        "bell": admin,
        "alerts.full_for": admin,
        "alerts.quiet": mine,
        "rule theirs": admin,
        "rule mine": mine,
    }


def test_a_file_in_the_home_folder_is_named_from_there(own_home: Path, tmp_path: Path) -> None:
    write(own_home / "config" / "gpuwatch" / "gpuwatch.toml", "bell = true\ninterval = 'x'\n")
    assert os.environ["HOME"] == str(own_home)
    with pytest.raises(UsageError, match=r"^~/config/gpuwatch/gpuwatch\.toml: key interval: found \"x\";"):
        load(None, administrators=tmp_path / "none")


# Reading it again


def test_reading_again_says_what_changed(tmp_path: Path) -> None:
    old = loaded(tmp_path, "bell = true\n[notify]\nurls = []\n")
    content = "[alerts]\nquiet = 1\n[[share]]\nshare = 0.5\n[[rule]]\nname = 'a'\nwhen = 'fan>1'\n"
    again = reload(old, lambda: loaded(tmp_path, content))
    assert (again.changed, again.error) == (("bell", "alerts.quiet", "share", "rule"), "")
    assert again.config.alerts.quiet == 1
    assert reload(again.config, lambda: loaded(tmp_path, content)).changed == ()


def test_a_file_that_has_become_wrong_keeps_the_old(tmp_path: Path) -> None:
    old = loaded(tmp_path, "bell = true\n")
    again = reload(old, lambda: loaded(tmp_path, "bell = 3\n"))
    assert (again.config, again.changed) == (old, ())
    assert again.error == f"{tmp_path}/mine.toml: key bell: found 3; allowed is true or false"


def test_a_file_that_is_gone_keeps_the_old(tmp_path: Path) -> None:
    old = msgspec.structs.replace(Config(), bell=True)
    again = reload(old, lambda: load(str(tmp_path / "gone.toml"), administrators=tmp_path / "none"))
    assert (again.config, again.error) == (old, f"--config: there is no file {tmp_path / 'gone.toml'}")
