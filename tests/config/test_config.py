"""gpuwatch.toml: its values, the administrator's file beneath it, its origins, and one line for the first mistake.

`mistakes.jsonl` has a file with a mistake on each line, and the beginning of what is said about it.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Allowances, CustomRule, Limits
from gpuwatch.base.errors import UsageError
from gpuwatch.config import load, reload
from gpuwatch.config.document import effective_text
from gpuwatch.config.keymap import DEFAULT_KEYS, PRESETS, RESERVED, Keys, actions, clash
from gpuwatch.config.keys import all_keys, value_of
from gpuwatch.config.reading import load_traced
from gpuwatch.config.types import Config, RemoteHost, Report
from gpuwatch.declared.facts import Share
from tests.support.builders import GIB, MIB
from tests.support.environment import make_homeless

MISTAKES = [json.loads(line) for line in Path(__file__).with_name("mistakes.jsonl").read_text().splitlines()]


@pytest.fixture
def admin(tmp_path: Path) -> Path:
    """Return the path of an administrator's file that is not there yet."""
    return tmp_path / "etc" / "gpuwatch.toml"


def write(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(0o644)
    return file


def loaded(tmp_path: Path, content: str, beneath: str | None = None) -> Config:
    admin = tmp_path / "none"
    if beneath is not None:
        admin = write(tmp_path / "etc.toml", beneath)
    return load(str(write(tmp_path / "mine.toml", content)), administrators=admin)


def refused(tmp_path: Path, content: str, beneath: str | None = None) -> str:
    """Return the words about a bad file, without its folder."""
    with pytest.raises(UsageError) as raised:
        loaded(tmp_path, content, beneath)
    error = str(raised.value)
    assert raised.value.exit_code == 2
    assert "\n" not in error
    return error.removeprefix(f"{tmp_path}/")


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one["toml"][-40:])
def test_a_mistake_is_named_with_its_key_and_what_is_allowed(tmp_path: Path, mistake: dict[str, str]) -> None:
    error = refused(tmp_path, mistake["toml"] + "\n")
    assert error.startswith(f"mine.toml: {mistake['error']}")
    assert "T0" not in error, "no address is shown"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"interval = 0x{'f' * 9000}", "key interval: found a number beyond all bounds;"),
        ("a = " + "[" * 100_000, "not TOML: it is nested too deep"),
        ("a." * 40_000 + "b = 1", "found a key of more than 32 parts; allowed are fewer"),
        ("#" * (1 << 20) + "\n", "found more than 1 MiB; allowed is less"),
        ("[[rule]]\n" * 65, "key rule: found 65 rules; allowed are 64"),
        *[
            (f'[keys]\npause = "{key}"', f'found "{key}", which is always the key to {RESERVED[key]};')
            for key in RESERVED
        ],
    ],
)
def test_what_is_too_much_is_one_line(tmp_path: Path, content: str, words: str) -> None:
    assert words in refused(tmp_path, content)


@pytest.mark.parametrize(
    ("beneath", "own", "words"),
    [
        ("[[share]]\nshare = 1.4", "interval = 'soon'", "etc.toml: key share[1].share: found 1.4; "),
        (
            "[alerts]\nmemory_warning = 4",
            "",
            "etc.toml: key alerts.memory_warning: found 4; allowed is at least 5, the value of alerts.memory_critical",
        ),
        (
            "[alerts]\nmemory_critical = 8",
            "[alerts]\nmemory_warning = 6",
            "mine.toml: key alerts.memory_warning: found 6; allowed is at least 8, the value of alerts.memory_critical",
        ),
        (
            '[keys]\ntree = "x"',
            '[keys]\npause = "x"',
            'mine.toml: key keys.pause: found "x", which is also the key of t',
        ),
    ],
)
def test_a_mistake_is_said_of_the_file_that_it_is_in(tmp_path: Path, beneath: str, own: str, words: str) -> None:
    assert refused(tmp_path, own, beneath).startswith(words)


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to a fifo"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "gpuwatch.toml"
    os.mkfifo(file)
    if kind == "link to a fifo":
        file = tmp_path / "link"
        file.symlink_to("gpuwatch.toml")
    elif kind == "folder":
        file = tmp_path
    with pytest.raises(UsageError, match=f"^{file}: is not a regular file$"):
        load(str(file), administrators=tmp_path / "none")


def test_bytes_that_are_no_text_are_not_toml(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for content in (b'\nuser = "\xff"', b"\xef\xbb\xbf\n\xff\n"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=r"mine\.toml: not TOML: it is not UTF-8"):
            load(str(file), administrators=tmp_path / "none")
    file.write_bytes(b"\xef\xbb\xbfinterval = 7\r\n[alerts]\r\nmemory_warning = 12\r\n")  # some editors begin with it
    assert load(str(file), administrators=tmp_path / "none").interval == 7


# -- values ----------------------------------------------------------------------------------------------------------


def test_without_any_file_all_is_default(admin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(None, administrators=admin) == Config()
    assert load(None, administrators=write(admin, "") / "gpuwatch.toml") == Config(), "a path through a file"
    assert Config().limits() == Limits()
    make_homeless(monkeypatch)
    assert load(None, administrators=admin) == Config()


def test_every_limit_that_a_user_should_set_has_a_key() -> None:
    keys = {name.partition(".")[2] for name in all_keys() if name.startswith("alerts.")}
    assert keys == set(Limits.__struct_fields__) - {"allowances", "custom"}


def test_every_default_is_allowed_by_its_own_key() -> None:
    for name, key in all_keys().items():
        value = value_of(Config(), name)
        assert key.read(tomllib.loads(f"key = {key.write(value)}")["key"]) == value, name


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "user = 'ada'\ncommand = 'train.*'\ngpu = 2\nshare = 0.4",
            {"user": "ada", "command": "train.*", "gpus": (2,)},
        ),
        ("share = 0.4\ngpu = [0, 'GPU-8932']", {"gpus": (0, "GPU-8932")}),
        ("share = '40%'\ngpu = 'GPU-8932F937-d72c'", {"gpus": ("GPU-8932F937-d72c",)}),
        ("share = 0.33333333333333331", {"share": 1 / 3}),
        ("memory = 20_000_000", {"memory": 20_000_000}),
        ("memory = '20GB'", {"memory": 20 * 10**9}),
        ("memory = '1.5G'", {"memory": 3 * GIB // 2}),
    ],
)
def test_shares_are_read(tmp_path: Path, content: str, expected: dict[str, Any]) -> None:
    defaults = {} if "memory" in expected else {"share": 0.4}
    expected = {"where": str(tmp_path / "mine.toml")} | defaults | expected
    assert loaded(tmp_path, f"[[share]]\n{content}\n").shares == (Share(**expected),)


LIMITS = """
[alerts]
off = ["power limit", "memory near limit"]
memory_warning = 12.5
memory_for = "500ms"
full_warning = "1h"
idle_after = 90
idle_memory = "512MiB"
xid_critical = [48, 94, 94]
[allowance]
after = 30
framework = "1GiB"
exact = 0
[report]
keep = "30d"
largest = "8MiB"
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


def test_limits_and_rules_are_read_in_the_units_that_people_write(tmp_path: Path) -> None:
    config = loaded(tmp_path, LIMITS)
    when = "mem>20GiB gpu:0,GPU-8932 user:ada"
    first = CustomRule(name="ada's memory", on="process", when=when, after=60, severity=Severity.CRITICAL)
    assert config.limits() == Limits(
        off=frozenset({"power limit", "nearly full"}),  # the file has its former name
        memory_warning=12.5,
        memory_for=0.5,
        full_warning=3600,
        idle_after=90,
        idle_memory=512 * MIB,
        xid_critical=frozenset({48, 94}),
        xid_warning=frozenset(),
        allowances=Allowances(after=30, framework=GIB, exact=0),
        custom=(msgspec.structs.replace(first, message="too much"), CustomRule(name="cold", when="utilization<5")),
    )
    assert config.report == Report(keep=30 * 86400.0, largest=8 * MIB)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_key_of_a_set_has_two_meanings(preset: str) -> None:
    keys = PRESETS[preset]
    assert (clash(keys), keys.preset) == (None, preset)
    assert all(keys.of(action) for action in actions())


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ('pause = "x"', {"pause": ("x",)}),
        ('pause = ["F5", "Space", "ctrl+R"]', {"pause": ("f5", "space", "ctrl+r")}),
        ('clear = ["Esc", "PgUp"]\npageup = "["', {"clear": ("escape", "pageup"), "pageup": ("[",)}),
        ('retry = []\npause = "m"\nmine = "p"', {"retry": (), "pause": ("m",), "mine": ("p",)}),
    ],
)
def test_an_action_has_the_keys_of_the_file(tmp_path: Path, written: str, keys: dict[str, tuple[str, ...]]) -> None:
    found = loaded(tmp_path, f"[keys]\n{written}\n").keys
    assert {action: found.of(action) for action in actions()} == {one: DEFAULT_KEYS.of(one) for one in actions()} | keys


def test_a_set_of_keys_is_under_the_keys_of_the_files(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[keys]\npreset = "nvitop"\nfilter = "/"\nreverse = "r"\nretry = "f5"\n').keys
    assert (found.filter, found.reverse, found.retry, found.sort_left) == (("/",), ("r",), ("f5",), (",",))
    below = loaded(tmp_path, '[keys]\npeople = "x"\n', '[keys]\npreset = "nvitop"\n').keys
    assert (below.people, below.reverse) == (("x",), ("/",))
    assert loaded(tmp_path, '[keys]\npreset = "gpuwatch"\n', '[keys]\npreset = "nvitop"\n').keys == Keys()


# -- two files, and where a value comes from -------------------------------------------------------------------------


def test_the_administrators_keys_are_defaults_and_its_shares_ceilings(tmp_path: Path) -> None:
    beneath = "interval = 5\nbell = true\n[alerts]\nmemory_warning = 20\nmemory_critical = 8\n"
    beneath += "[filters]\nbig = 'mem>1GiB'\nlab = 'gpu:0-3'\n[[share]]\nshare = 0.5\n"
    rule = "[[rule]]\nname = '{}'\nwhen = 'fan>{}'\n"
    beneath += rule.format("a", 3) + rule.format("b", 9)
    own = "interval = 2\nalerts.memory_critical = 4\nfilters.big = 'mem>9GiB'\n[[share]]\nuser = 'ada'\nshare = 0.9\n"
    config = loaded(tmp_path, own + rule.format("a", 1), beneath)
    assert (config.interval, config.bell) == (2.0, True)
    assert (config.alerts.memory_warning, config.alerts.memory_critical) == (20, 4)
    assert config.filters == {"big": "mem>9GiB", "lab": "gpu:0-3"}
    assert [(one.name, one.when) for one in config.rules] == [("a", "fan>1"), ("b", "fan>9")]
    theirs, mine = tmp_path / "etc.toml", tmp_path / "mine.toml"
    assert [(one.ceiling, one.share, one.where) for one in config.shares] == [
        (True, 0.5, str(theirs)),
        (False, 0.9, str(mine)),
    ]
    assert load(None, administrators=theirs).interval == 5, "also without a file of one's own"
    traced, origins = load_traced(str(mine), administrators=theirs)
    assert traced == config
    whole = ("interval", "bell", "alerts.memory_warning", "alerts.memory_critical", "filters.big", "rule a", "rule b")
    assert [origins[name] for name in whole] == [mine, theirs, theirs, mine, mine, mine, theirs]


def test_what_is_in_effect_can_be_read_as_the_same(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.toml", '[filters]\nlong = "idle>30m !jupyter"\nBig_1-x = "mem>10GiB"\n')
    config, origins = load_traced(str(file), administrators=tmp_path / "none")
    shown = effective_text(config, {name: str(origin) for name, origin in origins.items()})
    assert f"# {file}" in shown
    assert loaded(tmp_path, shown).filters == config.filters == {"long": "idle>30m !jupyter", "Big_1-x": "mem>10GiB"}


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_no_administrators(admin: Path, mode: int) -> None:
    write(admin, "[[share]]\nshare = 0.4").chmod(mode)
    with pytest.raises(UsageError, match=rf"^{admin}: others than its owner can write it \(mode {mode:04o}\)"):
        load(None, administrators=admin)


def test_a_file_that_cannot_be_opened_is_said(admin: Path, tmp_path: Path) -> None:
    admin.parent.mkdir()
    admin.symlink_to(admin)
    with pytest.raises(UsageError, match=f"^{admin}: cannot be read"):
        load(None, administrators=admin)
    good = tmp_path / "link"
    good.symlink_to(write(tmp_path / "dotfiles.toml", "interval = 7\n"))
    assert load(str(good), administrators=tmp_path / "none").interval == 7, "a link to a file is followed"


def test_a_file_in_the_home_folder_is_named_from_there(own_home: Path, admin: Path, tmp_path: Path) -> None:
    file = write(own_home / "config" / "gpuwatch" / "gpuwatch.toml", "[[share]]\nshare = 0.4")
    assert load(None, administrators=admin).shares[0].where == "~/config/gpuwatch/gpuwatch.toml"
    write(file, "interval = 'x'\n")
    with pytest.raises(UsageError, match=r"^~/config/gpuwatch/gpuwatch\.toml: key interval: found \"x\";"):
        load(None, administrators=admin)
    hostile = write(tmp_path / "a\x1b[31m.toml", "[[share]]\nshare = 0.4")
    assert "\x1b" not in load(str(hostile), administrators=admin).shares[0].where


def test_hosts_of_both_files_are_read_and_of_two_with_one_name_the_users_own(tmp_path: Path) -> None:
    host = "[[host]]\nname = '{}'\naddress = '{}'\n"
    theirs = host.format("a", "a.theirs") + host.format("b", "b.theirs:2222")
    config = loaded(tmp_path, host.format("b", "ada@b.mine") + "command = '~/gpuwatch'\n", theirs)
    assert config.hosts == (
        RemoteHost(name="a", address="a.theirs"),
        RemoteHost(name="b", address="ada@b.mine", command="~/gpuwatch"),
    )


# -- reading again ---------------------------------------------------------------------------------------------------


def test_reading_again_says_what_changed(tmp_path: Path) -> None:
    old = loaded(tmp_path, "bell = true\n[notify]\nurls = []\n")
    content = "filters.a = 'mine'\n[alerts]\nquiet = 1\n[[share]]\nshare = 0.5\n[[rule]]\nname = 'a'\nwhen = 'fan>1'\n"
    again = reload(old, lambda: loaded(tmp_path, content))
    assert (set(again.changed), again.error) == ({"bell", "alerts.quiet", "share", "rule", "filters"}, "")
    assert again.config.alerts.quiet == 1
    assert reload(again.config, lambda: loaded(tmp_path, content)).changed == ()


@pytest.mark.parametrize(("name", "error"), [("mine.toml", "key bell: found 3"), ("gone.toml", "no such file")])
def test_a_file_that_has_become_wrong_or_is_gone_keeps_the_old(tmp_path: Path, name: str, error: str) -> None:
    old = msgspec.structs.replace(Config(), bell=True)
    write(tmp_path / "mine.toml", "bell = 3\n")
    again = reload(old, lambda: load(str(tmp_path / name), administrators=tmp_path / "none"))
    assert (again.config, again.changed) == (old, ())
    assert error in again.error
