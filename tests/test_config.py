"""gpuwatch.toml: what it says, the administrator's file beneath it, and one line for whatever is wrong in either."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.alerts.rules import Allowances
from gpuwatch.config import Config, load
from gpuwatch.declared.claims import Share
from gpuwatch.errors import UsageError
from tests.builders import GIB, MIB


@pytest.fixture
def admin(tmp_path: Path) -> Path:
    """Give the place of an administrator's file that is not there yet."""
    return tmp_path / "etc" / "gpuwatch.toml"


def write(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(0o644)
    return file


def loaded(tmp_path: Path, content: str, admin: Path | None = None) -> Config:
    file = write(tmp_path / "mine.toml", content)
    return load(str(file), administrators=admin or tmp_path / "none")


def refused(tmp_path: Path, content: str) -> str:
    """Give the words about a bad file, without its path."""
    with pytest.raises(UsageError) as raised:
        loaded(tmp_path, content)
    error = str(raised.value)
    assert raised.value.exit_code == 2
    assert "\n" not in error
    assert error.startswith(f"{tmp_path / 'mine.toml'}: ")
    return error.partition("mine.toml: ")[2]


def test_without_any_file_all_is_default(admin: Path) -> None:
    assert load(None, administrators=admin) == Config()
    assert Config().limits().allowances == Allowances()


def test_shares_are_read_with_their_lines(tmp_path: Path) -> None:
    content = """# who takes what
interval = 2

[[share]]
user = "ada"
command = "train.*"
gpu = 2
share = 0.4

  [[ share ]]  # of everybody, on two GPUs
gpu = [0, "GPU-8932"]
memory = "20GiB"
[alerts]
memory_warning = 8
"""
    config = loaded(tmp_path, content)
    where = str(tmp_path / "mine.toml")
    assert config.shares == (
        Share(user="ada", command="train.*", gpus=(2,), share=0.4, where=where, line=4),
        Share(gpus=(0, "GPU-8932"), memory=20 * GIB, where=where, line=10),
    )
    assert (config.interval, config.alerts.memory_warning) == (2, 8)


def test_one_uuid_and_a_share_in_percent(tmp_path: Path) -> None:
    (share,) = loaded(tmp_path, '[[share]]\ngpu = "GPU-8932F937-d72c"\nshare = "40%"').shares
    assert (share.gpus, share.share, share.user) == (("GPU-8932F937-d72c",), 0.4, "")


@pytest.mark.parametrize(
    ("value", "size"), [("20_000", 20_000), ('"512MiB"', 512 * MIB), ('"20GB"', 20 * 10**9), ('"1.5G"', 3 * GIB // 2)]
)
def test_memory_is_bytes_or_a_size(tmp_path: Path, value: str, size: int) -> None:
    (share,) = loaded(tmp_path, f"[[share]]\nmemory = {value}").shares
    assert (share.memory, share.share) == (size, None)


@pytest.mark.parametrize("share", ["0.33333333333333331", "1", "1e-9", "1.0"])
def test_any_fraction_that_toml_can_write_is_read(tmp_path: Path, share: str) -> None:
    assert loaded(tmp_path, f"[[share]]\nshare = {share}").shares[0].share == float(share)


@pytest.mark.parametrize(
    "content",
    [
        "share = [{ share = 0.4 }]",
        'user = """\n[[share]]\n"""\n[[share]]\nshare = 0.4',
        '[["sha\\u0072e"]]\nshare = 0.4',
    ],
)
def test_a_line_that_cannot_be_told_is_none(tmp_path: Path, content: str) -> None:
    (share,) = loaded(tmp_path, content).shares
    assert (share.share, share.line) == (0.4, 0)


def test_the_users_own_file_is_shown_from_home(own_home: Path, admin: Path) -> None:
    write(own_home / "config" / "gpuwatch" / "gpuwatch.toml", "[[share]]\nshare = 0.4")
    assert load(None, administrators=admin).shares[0].where == "~/config/gpuwatch/gpuwatch.toml"


def test_a_hostile_path_is_cleaned(tmp_path: Path) -> None:
    file = write(tmp_path / "a\x1b[31m.toml", "[[share]]\nshare = 0.4")
    (share,) = load(str(file), administrators=tmp_path / "none").shares
    assert "\x1b" not in share.where


# Bad values


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("share = 1.4", "key `share`: share 1.4 is not allowed; write more than 0 and up to 1, such as 0.4"),
        ("share = 0", "key `share`: share 0 is not allowed"),
        ("share = -0.4", "key `share`: share -0.4 is not allowed"),
        ("share = nan", "key `share`: share nan is not allowed"),
        ("share = inf", "key `share`: share inf is not allowed"),
        ('share = "140%"', "key `share`: share '140%' is not allowed"),
        ("share = true", "key `share`: Expected `float | str | null`, got `bool`"),
        ('memory = "20x"', "key `memory`: size '20x' is not understood; write bytes, or a number with K, M, G or T"),
        ("memory = 0", "key `memory`: a size of 0 is not allowed"),
        ("memory = -5", "key `memory`: size '-5' is not understood"),
        ("memory = 99999999999999999999999", "key `memory`: size '99999999999999999999999' is not understood"),
        ("memory = 2.5", "key `memory`: Expected `int | str | null`, got `float`"),
        ("share = 0.4\nmemory = 4", "both `share` and `memory` are given; exactly one of them is needed"),
        ("", "`share` or `memory` is missing; exactly one of them is needed"),
        ("share = 0.4\nshrae = 1", "unknown key `shrae`; allowed are user, command, gpu, share, memory"),
        ("share = 0.4\nceiling = true", "unknown key `ceiling`; allowed are"),
        ("share = 0.4\ngpu = -1", "key `gpu`: -1 is no GPU; write indices from 0 on, or (starts of) UUIDs"),
        ("share = 0.4\ngpu = [0, -1]", "key `gpu`: -1 is no GPU"),
        ('share = 0.4\ngpu = "2"', "key `gpu`: '2' is no GPU"),
        ('share = 0.4\ngpu = "GPU-"', "key `gpu`: 'GPU-' is no GPU"),
        ("share = 0.4\ngpu = []", "key `gpu`: the list is empty; leave the key out for all GPUs"),
        ("share = 0.4\ngpu = 1.5", "key `gpu`: Expected `int | str | array | null`, got `float`"),
        ("share = 0.4\ngpu = [[1]]", "key `gpu[0]`: Expected `int | str`, got `array`"),
        ('share = 0.4\ncommand = "train.("', "key `command`: 'train.(' is no regular expression: "),
        ("share = 0.4\ncommand = 'a{99999999999999999999}'", "is no regular expression: "),
        ("share = 0.4\ncommand = '[[a]b'", "is no regular expression: Possible nested set"),
        ("share = 0.4\ncommand = ''", "key `command`: Expected `str` of length >= 1"),
        (f"share = 0.4\ncommand = '{'a' * 201}'", "key `command`: Expected `str` of length <= 200"),
        ("share = 0.4\nuser = ''", "key `user`: Expected `str` of length >= 1"),
        ("share = 0.4\nuser = 1001", "key `user`: Expected `str`, got `int`"),
    ],
)
def test_a_bad_share_is_named_with_its_number_and_line(tmp_path: Path, content: str, said: str) -> None:
    error = refused(tmp_path, f"[[share]]\nshare = 0.4\n[[share]]\n{content}\n")
    assert error.startswith("[[share]] number 2 (line 3): ")
    assert said in error


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("share = 0.4", "key `share`: a `float` is not allowed; write tables: [[share]]"),
        ("[share]\nshare = 0.4", "key `share`: a `dict` is not allowed; write tables: [[share]]"),
        ("share = [0.4]", "[[share]] number 1: Expected `object`, got `float`"),
        ("shares = []", "unknown key `shares`; allowed are interval, "),
        ("[allowance]\nframework = '20x'", "key `allowance.framework`: size '20x' is not understood"),
        ("[allowance]\nexact = true", "key `allowance.exact`: Expected `int | str`, got `bool`"),
        ("[allowance]\nafter = 'soon'", "key `allowance.after`: interval 'soon' is not understood"),
        ("[allowance]\nbudgets = 1", "unknown key `allowance.budgets`; allowed are after, framework"),
        ("allowance = 3", "key `allowance`: Expected `object`, got `int`"),
        ("[alerts]\nmemory = 2", "unknown key `alerts.memory`; allowed are memory_warning, memory_critical"),
        ("nothing = 1", "unknown key `nothing`; allowed are interval, user, mine"),
        ("interval = ", "not TOML: "),
    ],
)
def test_any_other_bad_value_is_named_with_its_key(tmp_path: Path, content: str, said: str) -> None:
    assert refused(tmp_path, content).startswith(said)


def test_bytes_that_are_no_text_are_not_toml(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b'user = "\xff"')
    with pytest.raises(UsageError, match=r"mine\.toml: not TOML"):
        load(str(file), administrators=tmp_path / "none")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load(str(tmp_path), administrators=tmp_path / "none")


# Allowances


def test_allowances_reach_the_rules(tmp_path: Path) -> None:
    content = "[allowance]\nafter = 30\nframework = '1GiB'\nexact = 0\n[alerts]\nmemory_critical = 3\n"
    limits = loaded(tmp_path, content).limits()
    assert limits.allowances == Allowances(after=30, framework=GIB, exact=0)
    assert (limits.memory_warning, limits.memory_critical) == (10, 3)


# The administrator's file


def test_the_administrators_keys_are_defaults_and_its_shares_ceilings(tmp_path: Path, admin: Path) -> None:
    write(
        admin,
        "interval = 5\nbell = true\n[alerts]\nmemory_warning = 20\nmemory_critical = 8\n"
        "[allowance]\nexact = '1GiB'\n[[share]]\nshare = 0.5",
    )
    content = "interval = 2\n[alerts]\nmemory_critical = 4\n[[share]]\nuser = 'ada'\nshare = 0.9\n"
    config = loaded(tmp_path, content, admin)
    assert (config.interval, config.bell, config.allowance.exact) == (2, True, "1GiB")
    assert (config.alerts.memory_warning, config.alerts.memory_critical) == (20, 4)
    theirs, own = config.shares
    assert (theirs.ceiling, theirs.share, theirs.where, theirs.line) == (True, 0.5, str(admin), 8)
    assert (own.ceiling, own.share, own.where) == (False, 0.9, str(tmp_path / "mine.toml"))


def test_the_administrators_file_holds_without_a_file_of_ones_own(admin: Path) -> None:
    write(admin, "read_only = true\n[[share]]\nuser = 'ada'\nmemory = '4G'")
    config = load(None, administrators=admin)
    assert config.read_only
    assert [(one.user, one.memory, one.ceiling) for one in config.shares] == [("ada", 4 * GIB, True)]


def test_a_bad_value_is_said_of_the_file_that_it_is_in(tmp_path: Path, admin: Path) -> None:
    write(admin, "[[share]]\nshare = 1.4")
    with pytest.raises(UsageError) as raised:
        loaded(tmp_path, "interval = 'soon'", admin)
    assert str(raised.value).startswith(f"{admin}: [[share]] number 1 (line 1): ")
    write(admin, "[alerts]\nmemory_warning = 4")
    with pytest.raises(UsageError, match=f"^{admin}: key memory_critical: 5 % is above"):
        loaded(tmp_path, "", admin)
    write(admin, "[alerts]\nmemory_critical = 8")
    with pytest.raises(UsageError, match=r"mine\.toml: key memory_critical: 8 % is above memory_warning, 6 %"):
        loaded(tmp_path, "[alerts]\nmemory_warning = 6", admin)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_no_administrators(admin: Path, mode: int) -> None:
    write(admin, "[[share]]\nshare = 0.4").chmod(mode)
    with pytest.raises(UsageError) as raised:
        load(None, administrators=admin)
    words = f"others than its owner can write it (mode {mode:04o}); it counts only after `chmod go-w {admin}`"
    assert str(raised.value) == f"{admin}: {words}"


def test_a_fifo_in_its_place_does_not_hang(admin: Path) -> None:
    admin.parent.mkdir()
    os.mkfifo(admin, 0o644)
    with pytest.raises(UsageError, match="is no ordinary file"):
        load(None, administrators=admin)


def test_an_administrators_file_that_cannot_be_opened_is_said(admin: Path) -> None:
    admin.parent.mkdir()
    admin.symlink_to(admin)
    with pytest.raises(UsageError, match=f"^{admin}: cannot be read"):
        load(None, administrators=admin)


def test_a_path_through_a_file_is_no_file(tmp_path: Path) -> None:
    between = write(tmp_path / "plain", "")
    assert load(None, administrators=between / "gpuwatch.toml") == Config()


def test_a_file_nested_without_end_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "gpuwatch.toml"
    file.write_text("a = " + "[" * 100_000)
    with pytest.raises(UsageError, match="not TOML: it is nested too deep"):
        load(str(file), administrators=tmp_path / "none")
