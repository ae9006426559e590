"""gpuwatch.toml: its values, the administrator's file beneath it, and one line for the first mistake in either."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.alerts.limits import Allowances
from gpuwatch.config import Config, Report, load
from gpuwatch.declared.facts import Share
from gpuwatch.errors import UsageError
from tests.support.builders import GIB, MIB
from tests.support.homes import make_homeless


@pytest.fixture
def admin(tmp_path: Path) -> Path:
    """Return the place of an administrator's file that is not there yet."""
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
    """Return the words about a bad file, without its folder."""
    with pytest.raises(UsageError) as raised:
        loaded(tmp_path, content)
    error = str(raised.value)
    assert raised.value.exit_code == 2
    assert "\n" not in error
    assert error.startswith(f"{tmp_path / 'mine.toml'}: ")
    return error.removeprefix(f"{tmp_path}/")


def test_without_any_file_all_is_default(admin: Path) -> None:
    assert load(None, administrators=admin) == Config()
    assert Config().limits().allowances == Allowances()


def test_shares_are_read(tmp_path: Path) -> None:
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
        Share(user="ada", command="train.*", gpus=(2,), share=0.4, where=where),
        Share(gpus=(0, "GPU-8932"), memory=20 * GIB, where=where),
    )
    assert (config.interval, config.alerts.memory_warning) == (2, 8)


def test_one_uuid_and_a_share_in_percent(tmp_path: Path) -> None:
    (share,) = loaded(tmp_path, '[[share]]\ngpu = "GPU-8932F937-d72c"\nshare = "40%"').shares
    assert (share.gpus, share.share, share.user) == (("GPU-8932F937-d72c",), 0.4, "")


@pytest.mark.parametrize(
    ("value", "size"),
    [("20_000_000", 20_000_000), ('"512MiB"', 512 * MIB), ('"20GB"', 20 * 10**9), ('"1.5G"', 3 * GIB // 2)],
)
def test_memory_is_bytes_or_a_size(tmp_path: Path, value: str, size: int) -> None:
    (share,) = loaded(tmp_path, f"[[share]]\nmemory = {value}").shares
    assert (share.memory, share.share) == (size, None)


@pytest.mark.parametrize("share", ["0.33333333333333331", "1", "1e-9", "1.0"])
def test_any_fraction_that_toml_can_write_is_read(tmp_path: Path, share: str) -> None:
    assert loaded(tmp_path, f"[[share]]\nshare = {share}").shares[0].share == float(share)


def test_the_users_own_file_is_shown_from_home(own_home: Path, admin: Path) -> None:
    write(own_home / "config" / "gpuwatch" / "gpuwatch.toml", "[[share]]\nshare = 0.4")
    assert load(None, administrators=admin).shares[0].where == "~/config/gpuwatch/gpuwatch.toml"


def test_a_hostile_path_is_cleaned(tmp_path: Path) -> None:
    file = write(tmp_path / "a\x1b[31m.toml", "[[share]]\nshare = 0.4")
    (share,) = load(str(file), administrators=tmp_path / "none").shares
    assert "\x1b" not in share.where


# Bad values


SIZE = 'a size of 1MiB or more: bytes, or a text such as "512MiB" or "20GiB"'
GPUS = 'indices from 0 on, or (starts of) UUIDs such as "GPU-8932f937"'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("share = 1.4", 'key share[2].share: found 1.4; allowed is more than 0 and up to 1, such as 0.4 or "40%"'),
        ("share = 0", "key share[2].share: found 0; allowed is more than 0"),
        ("share = -0.4", "key share[2].share: found -0.4;"),
        ("share = nan", "key share[2].share: found nan;"),
        ("share = inf", "key share[2].share: found inf;"),
        ('share = "140%"', 'key share[2].share: found "140%";'),
        ("share = true", "key share[2].share: found true;"),
        ('memory = "20x"', f'key share[2].memory: found "20x"; allowed is {SIZE}'),
        ("memory = 0", f"key share[2].memory: found 0; allowed is {SIZE}"),
        ("memory = -5", "key share[2].memory: found -5;"),
        ("memory = 99999999999999999999999", "key share[2].memory: found 99999999999999999999999;"),
        ("memory = 2.5", "key share[2].memory: found 2.5;"),
        ("share = 0.4\nmemory = '4GiB'", "[[share]] number 2: found share and memory; allowed is exactly one of them"),
        ("", "[[share]] number 2: found neither share nor memory; allowed is exactly one of them"),
        ("share = 0.4\nshrae = 1", "unknown key share[2].shrae; did you mean share?"),
        ("share = 0.4\nceiling = true", "unknown key share[2].ceiling; allowed are user, command, gpu, share,"),
        ("share = 0.4\ngpu = -1", f"key share[2].gpu: found -1; allowed is {GPUS}"),
        ("share = 0.4\ngpu = [0,\n-1]", "key share[2].gpu: found -1;"),
        ('share = 0.4\ngpu = "2"', 'key share[2].gpu: found "2";'),
        ('share = 0.4\ngpu = "GPU-"', 'key share[2].gpu: found "GPU-";'),
        ("share = 0.4\ngpu = []", "key share[2].gpu: found an empty list;"),
        ("share = 0.4\ngpu = 1.5", "key share[2].gpu: found 1.5;"),
        ("share = 0.4\ngpu = [[1]]", "key share[2].gpu: found a list;"),
        ("share = 0.4\ngpu = true", "key share[2].gpu: found true;"),
        ('share = 0.4\ncommand = "train.("', 'key share[2].command: found "train.(", which is none ('),
        ("share = 0.4\ncommand = 'a{99999999999999999999}'", ", which is none ("),
        ("share = 0.4\ncommand = '[[a]b'", ", which is none (Possible nested set"),
        ("share = 0.4\ncommand = ''", 'key share[2].command: found ""; allowed is a regular expression of 1 to 200'),
        (
            f"share = 0.4\ncommand = '{'a' * 201}'",
            f'found "{"a" * 57}..."; allowed is a regular expression of 1 to 200',
        ),
        ("share = 0.4\nuser = ''", 'key share[2].user: found ""; allowed is text of 1 to 200 printable characters'),
        ("share = 0.4\nuser = 1001", "key share[2].user: found 1001; allowed is text"),
        ('share = 0.4\nuser = "a\\u001b[31m"', r'key share[2].user: found "a\u001B[31m"; allowed is text'),
    ],
)
def test_a_bad_share_is_named_with_its_key(tmp_path: Path, content: str, said: str) -> None:
    error = refused(tmp_path, f"[[share]]\nshare = 0.4\n[[share]]\n{content}\n")
    assert said in error
    assert error.startswith("mine.toml: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("share = 0.4", ": key share: found 0.4; allowed are tables, each with a line [[share]]"),
        ("[share]\nshare = 0.4", ": key share: found a table; allowed are tables, each with a line [[share]]"),
        ("share = [0.4]", ": [[share]] number 1: found 0.4; allowed is a table"),
        ("shares = []", ": unknown key shares; did you mean share?"),
        ("[allowance]\nframework = 600", ": key allowance.framework: found 600; allowed is a size, 0 or 1MiB or"),
        ("[allowance]\nframework = '20x'", ': key allowance.framework: found "20x"; allowed is a size, 0 or 1MiB'),
        ("[allowance]\nexact = true", ": key allowance.exact: found true; allowed is a size"),
        ("[allowance]\nafter = 'soon'", ': key allowance.after: found "soon"; allowed is seconds, or a text such as'),
        ("[allowance]\nbudgets = 1", ": unknown key allowance.budgets; did you mean budget?"),
        ("allowance = 3", ": key allowance: found 3; allowed is a table [allowance]"),
        ("alerts = []", ": key alerts: found a list; allowed is a table [alerts]"),
        ("[alerts]\nmemory = 2", ": unknown key alerts.memory; did you mean memory_for?"),
        ("memory_for = 2", ": unknown key memory_for; did you mean alerts.memory_for?"),
        ("nothing = 1", ": unknown key nothing; allowed are interval, user, mine"),
        ('"a\\u001b" = 1', ": unknown key a\N{REPLACEMENT CHARACTER}; allowed are interval"),
        ("interval = 0", ': key interval: found 0; allowed is seconds, or a text such as "30s", "10min" or "2h",'),
        ("interval = 2024-01-01", ": key interval: found a date or a time;"),
        ("interval = nan", ": key interval: found nan;"),
        (f"interval = 0x{'f' * 9000}", ": key interval: found a number beyond all bounds;"),
        ("theme = 'pink'", ': key theme: found "pink"; allowed is "dark", "light", "ansi-dark",'),
        ("columns = ['pid', 'user', 'pid']", ': key columns: found "pid" twice; allowed is a list of "gpu", "pid", '),
        ("columns = ['pids']", ': key columns: found "pids"; allowed is a list of "gpu", "pid", '),
        ("bell = 'yes'", ': key bell: found "yes"; allowed is true or false'),
        ("bell = 1", ": key bell: found 1; allowed is true or false"),
        ("\nalerts.memory_warning = 'lots'", ': key alerts.memory_warning: found "lots"; allowed is a number from'),
        ("alerts = { memory_warning = 96 }", ": key alerts.memory_warning: found 96; allowed is a number from 0"),
        ("[alerts]\nidle_after = '8d'", ': key alerts.idle_after: found "8d"; allowed is seconds, or a text such as'),
        ("[alerts]\nidle_memory = '5kB'", ': key alerts.idle_memory: found "5kB"; allowed is a size of 1MiB or more'),
        ("[alerts]\nxid_critical = [31, 0]", ": key alerts.xid_critical: found 0; allowed is a list of XID numbers"),
        ("[alerts]\nxid_critical = 31", ": key alerts.xid_critical: found 31; allowed is a list of XID numbers"),
        (f"[alerts]\nxid_critical = {[1] * 65}", ": key alerts.xid_critical: found 65 of them; allowed is a list"),
        ("[alerts]\noff = ['xid']", ': key alerts.off: found "xid"'),
        ("[alerts]\noff = ['trottled']", '(did you mean "throttled"?); allowed is a list of "XID", "data stale"'),
        ("[alerts]\noff = ['overshoot']", ': key alerts.off: found "overshoot", which is called "uses more than'),
        ("[alerts]\norphan_memory = '1GiB'", ": unknown key alerts.orphan_memory; it is called"),
        ("[alerts]\noff = 'XID'", ': key alerts.off: found "XID"; allowed is a list of "XID", "data stale"'),
        ("[notify]\nleast = 'worst'", ': key notify.least: found "worst"; allowed is "note", "warning" or'),
        ("[notify]\ndigest = 1.5", ": key notify.digest: found 1.5; allowed is a whole number from 1 to 1000"),
        ("[notify]\ncommand = ['tell']", ': key notify.command: found "tell" as the first; allowed is a list such'),
        ("[notify]\ncommand = '/bin/tell'", ': key notify.command: found "/bin/tell"; allowed is a list such as'),
        ("[notify]\ncommand = ['/bin/tell', 3]", ": key notify.command: found 3; allowed is a list"),
        ("[notify]\nurls = 'slack://T0K3N'", ': key notify.urls: found "slack://…" alone; allowed is a list'),
        ("[notify]\nurls = ['T0K3N']", ': key notify.urls: found "…", which is none; allowed is a list'),
        ("[notify]\nurls = ['slack://T0 K3N']", ': key notify.urls: found "slack://…", which is none; allowed'),
        ("[notify]\nurl = 'slack://T0K3N'", ": unknown key notify.url; did you mean urls?"),
        ("[report]\nkeep = '1h'", ': key report.keep: found "1h"; allowed is seconds, or a text such as'),
        ("[report]\nkeep = '400d'", ': key report.keep: found "400d"; allowed is'),
        ("[report]\nlargest = '1MiB'", ': key report.largest: found "1MiB"; allowed is a size of 4MiB or more'),
        ("[report]\ndashboard = 'yes'", ': key report.dashboard: found "yes"; allowed is true or false'),
        ("a = 1\ninterval = \n", ": not TOML: Invalid value (at line 2, column 12)"),
        ("a = 1\na = 2\n", ": not TOML: Cannot overwrite a value"),
        ("a = [", ": not TOML: Invalid value (at end of document)"),
    ],
)
def test_any_other_bad_value_is_named_with_its_key(tmp_path: Path, content: str, said: str) -> None:
    error = refused(tmp_path, content)
    assert said in error
    assert "T0" not in error


def test_bytes_that_are_no_text_are_not_toml(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b'\nuser = "\xff"')
    with pytest.raises(UsageError, match=r"mine\.toml: not TOML: it is not UTF-8"):
        load(str(file), administrators=tmp_path / "none")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b"\xef\xbb\xbfinterval = 7\r\n[alerts]\r\nmemory_warning = 12\r\n")
    config = load(str(file), administrators=tmp_path / "none")
    assert (config.interval, config.alerts.memory_warning) == (7, 12)
    file.write_bytes(b"\xef\xbb\xbfinterval = 0\n")
    with pytest.raises(UsageError, match=f"^{file}: key interval: found 0; "):
        load(str(file), administrators=tmp_path / "none")
    file.write_bytes(b"\xef\xbb\xbf\n\xff\n")
    with pytest.raises(UsageError, match=f"^{file}: not TOML: it is not UTF-8"):
        load(str(file), administrators=tmp_path / "none")


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "#" * (1 << 20) + "\n") == "mine.toml: found more than 1 MiB; allowed is less"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^{tmp_path}: is no ordinary file$"):
        load(str(tmp_path), administrators=tmp_path / "none")


@pytest.mark.parametrize("linked", [False, True])
def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path, linked: bool) -> None:
    file = tmp_path / "gpuwatch.toml"
    os.mkfifo(file)
    if linked:
        file = tmp_path / "link"
        file.symlink_to("gpuwatch.toml")
    with pytest.raises(UsageError, match=f"^{file}: is no ordinary file$"):
        load(str(file), administrators=tmp_path / "none")


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "dotfiles.toml", "interval = 7\n")
    (tmp_path / "gpuwatch.toml").symlink_to("dotfiles.toml")
    assert load(str(tmp_path / "gpuwatch.toml"), administrators=tmp_path / "none").interval == 7


def test_the_keys_of_the_report(tmp_path: Path) -> None:
    content = "[report]\ndashboard = true\nkeep = '30d'\nlargest = '8MiB'\n"
    assert loaded(tmp_path, content).report == Report(dashboard=True, keep=30 * 86400.0, largest=8 * MIB)
    assert Report() == Report(dashboard=True, keep=90 * 86400.0, largest=64 * MIB)


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
    assert (config.interval, config.bell, config.allowance.exact) == (2.0, True, GIB)
    assert (config.alerts.memory_warning, config.alerts.memory_critical) == (20, 4)
    theirs, own = config.shares
    assert (theirs.ceiling, theirs.share, theirs.where) == (True, 0.5, str(admin))
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
    assert str(raised.value).startswith(f"{admin}: key share[1].share: found 1.4; ")


@pytest.mark.parametrize(
    ("beneath", "own", "found", "allowed"),
    [
        (
            *("", "[alerts]\nmemory_critical = 40", "mine.toml: key alerts.memory_critical: found 40; "),
            "allowed is at most 10, the value of alerts.memory_warning (default)",
        ),
        (
            *("", "[alerts]\nfull_warning = '1min'", 'mine.toml: key alerts.full_warning: found "1min"; '),
            'allowed is at least "2min", the value of alerts.full_critical (default)',
        ),
        (
            *("[alerts]\nmemory_warning = 4", "", "gpuwatch.toml: key alerts.memory_warning: found 4; "),
            "allowed is at least 5, the value of alerts.memory_critical (default)",
        ),
        (
            *(
                "[alerts]\nmemory_critical = 8",
                "[alerts]\nmemory_warning = 6",
                "mine.toml: key alerts.memory_warning: ",
            ),
            "found 6; allowed is at least 8, the value of alerts.memory_critical ({admin})",
        ),
    ],
)
def test_a_limit_on_the_wrong_side_of_another_is_said_with_both(
    tmp_path: Path, admin: Path, beneath: str, own: str, found: str, allowed: str
) -> None:
    write(admin, beneath)
    with pytest.raises(UsageError) as raised:
        loaded(tmp_path, own, admin)
    assert str(raised.value).endswith(f"/{found}{allowed.format(admin=admin)}")


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_no_administrators(admin: Path, mode: int) -> None:
    write(admin, "[[share]]\nshare = 0.4").chmod(mode)
    with pytest.raises(UsageError) as raised:
        load(None, administrators=admin)
    words = f"others than its owner can write it (mode {mode:04o}); it counts only after `chmod go-w {admin}`"
    assert str(raised.value) == f"{admin}: {words}"


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


@pytest.mark.parametrize("form", ["\n{} = 1", "\n[{}]", "\nx = {{{} = 1}}", "\n[[ {} ]]"])
@pytest.mark.parametrize("part", ["a", '"a.b"', "'a b'"])
def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(tmp_path: Path, form: str, part: str) -> None:
    error = refused(tmp_path, form.format(" . ".join([part] * 2000)))
    assert error == "mine.toml: found a key of more than 32 parts; allowed are fewer"


def test_of_several_mistakes_the_first_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path, 'theme = "blue"\nmine = "yes"\nbell = 1\n').startswith("mine.toml: key theme: ")


def test_without_a_home_there_is_no_file_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_homeless(monkeypatch)
    assert load(None, administrators=tmp_path / "none") == Config()
