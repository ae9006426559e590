"""Damaged files: each that gpuwatch reads gives its data or one clear line, whatever stands in it, and no traceback."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from sqlite3 import Connection

import msgspec
import pytest

from gpuwatch import cli
from gpuwatch.alerts.alert import Acknowledgement, Attention, Mute
from gpuwatch.base.procfs import boot_id
from gpuwatch.commands.stray_inputs import read_idle
from gpuwatch.model.live import FILE, Overuse, Status, StatusGpu, read_status
from gpuwatch.model.snapshot import IdleHolding
from gpuwatch.recorder.events import write_events
from gpuwatch.recorder.marks import marks_of, write_marks
from gpuwatch.recorder.opening import StoreError
from gpuwatch.recorder.schema import own_store
from gpuwatch.recorder.store import Store
from tests.support.store import alert, batch, ended, save

SEEDS = 10
DEEP = 200_000
"""Brackets in a row: beyond what any parser takes, and less than what is read of a file."""

Damage = Callable[[bytes, random.Random], bytes]


def flipped(content: bytes, dice: random.Random) -> bytes:
    """Change some bytes: close together, on the first page (where a database has its schema), or anywhere."""
    found = bytearray(content)
    start, end = dice.choice(((at := dice.randrange(len(found)), at + 200), (0, 4096), (0, len(found))))
    end = min(end, len(found))
    for _ in range(dice.choice((1, 3, 20, 200))):
        found[dice.randrange(start, end)] = dice.randrange(256)
    return bytes(found)


def cut(content: bytes, dice: random.Random) -> bytes:
    """Leave out the end, or something in between."""
    start = dice.randrange(len(content))
    return content[:start] + (b"" if dice.random() < 0.5 else content[dice.randrange(start, len(content)) :])


def nested(content: bytes, dice: random.Random) -> bytes:
    """Put in what is nested deeper than any parser follows."""
    at = dice.choice([0, dice.randrange(len(content)), content.find(b":") + 1, content.find(b"{") + 1])
    return content[:at] + dice.choice([b"[", b'{"a":', b'"a":[', b"a."]) * DEEP + content[at:]


def spliced(content: bytes, dice: random.Random) -> bytes:
    """Put in what is awkward: long numbers, halves of surrogates, escapes, other encodings, or noise."""
    at = dice.randrange(len(content))
    odd = (b"9" * 5000, b"1e999", rb'"\ud800"', b"\x1b]0;x\x07", b"\xef\xbb\xbf", b"\0" * 4096, dice.randbytes(300))
    return content[:at] + dice.choice(odd) + content[at + dice.randrange(100) :]


DAMAGES: dict[str, Damage] = {one.__name__: one for one in (flipped, cut, nested, spliced)}


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest) -> Callable[[bytes], Iterator[bytes]]:
    """Return a function that yields damaged copies of a file's content, the same ones in each run."""

    def copies(content: bytes) -> Iterator[bytes]:
        for seed in range(SEEDS):
            yield DAMAGES[request.param](content, random.Random(seed))

    return copies


def run(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> int:
    """Run a command in this process; all that it prints must be printable, and an error one line with the file."""
    code = cli.main(arguments, None)
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).split("\n"))
    assert all(line.startswith("gpuwatch: ") for line in err.splitlines())
    assert len(err.splitlines()) <= 3  # what was watched, what is damaged, and that no gpuwatch runs
    if code:
        assert code in (1, 2)
        assert file.name in out + err
        assert len(err) < 1000
    return code


# ---------------------------------------------------------------------------------------------------------------
# Commands


def kept() -> bytes:
    """Return the content of a store, with some of everything in it."""
    path, now = own_store(), int(time.time()) // 3600 * 3600
    seen = [ended(alert(str(n), rule="over declared", gpu="GPU-0", raised=float(now))) for n in range(20)]
    several = (batch(now - 3600 * (n % 9), n % 4, f"u{n}", str(n), uid=n % 7, name=f"run{n}.py") for n in range(40))
    save(path, *several, events=seen)
    alerts = [alert(str(n), raised=now - 60, owners=("ada",), peak=3.5, index=n) for n in range(9)]
    attention = Attention(
        acks=tuple(Acknowledgement(key=f"memory GPU-{n}", at=now) for n in range(5)),
        mutes=tuple(Mute(rule=f"rule {n}") for n in range(5)),
    )

    def write(connection: Connection) -> None:
        write_events(connection, [*alerts, *map(ended, alerts[::2])], [], now)
        write_marks(connection, marks_of(attention), now)

    Store(path).write(write)
    return path.read_bytes()


def test_the_store(damage: Callable[[bytes], Iterator[bytes]], capsys: pytest.CaptureFixture[str]) -> None:
    path = own_store()
    for content in damage(kept()):
        for one in path.parent.iterdir():
            one.unlink()
        path.write_bytes(content)
        for by, how in (("user", []), ("gpu", ["--json"]), ("run", ["--csv"])):
            run(capsys, path, "report", "--by", by, *how)
        run(capsys, path, "events")
        run(capsys, path, "events", "--file", str(path), "--json")
        try:
            save(path, batch(), patience=0.1)
        except StoreError as error:  # and nothing else
            words = str(error)
            assert words.startswith(f"{path}: ")
            assert "Error" not in words


def test_the_configuration(
    damage: Callable[[bytes], Iterator[bytes]], capsys: pytest.CaptureFixture[str], own_home: Path
) -> None:
    path = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    path.parent.mkdir(parents=True)
    content = (
        'interval = "2s"\nuser = "ada"\n[alerts]\noff = ["XID"]\nmemory_warning = 12.5\n[notify]\n'
        'command = ["/bin/true", "a"]\nurls = ["json://h/x"]\n[[share]]\ncommand = "a.*b"\ngpu = [0, "GPU-8932"]\n'
        'share = 0.3\n[[rule]]\nname = "hot"\non = "gpu"\nwhen = "temperature>80"\nfor = "1.5s"\n'
    )
    path.write_text(content)
    path.chmod(0o600)
    assert run(capsys, path, "config", "--show") == 0, "it is good before it is damaged"
    for damaged in damage(content.encode()):
        path.write_bytes(damaged)
        shown = run(capsys, path, "config", "--show")
        assert run(capsys, path, "--demo", "--once", "--gpu", "0") == shown
        assert (cli.main(["config", "--check"], None) == 0) is (shown == 0)
        assert path.name in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------------
# What is read by the way


def figures() -> bytes:
    """Return the newest figures, of this very moment."""
    gpus = tuple(
        StatusGpu(index=n, uuid=f"GPU-{n}", used=5, total=9, free_percent=40.5, near="warning") for n in range(4)
    )
    resting = tuple(IdleHolding(f"GPU-{n}", 100 + n, 5, 60.0, at_least=True) for n in range(4))
    over = (Overuse(user="ada", gib=3.5),)
    found = Status(gpus=gpus, over=over, resting=resting, host="lab", boot=boot_id(), interval=1e9)
    return msgspec.json.encode(msgspec.structs.replace(found, monotonic=time.monotonic(), words="all is well"))


def test_the_newest_figures(
    damage: Callable[[bytes], Iterator[bytes]], capsys: pytest.CaptureFixture[str], own_home: Path
) -> None:
    path = own_home / "runtime" / "gpuwatch" / FILE
    path.parent.mkdir(mode=0o700)
    used = 0
    for content in damage(figures()):
        path.write_bytes(content)
        path.chmod(0o600)
        said: list[str] = []
        found = read_status(warn=said.append)
        assert len(said) <= 1
        assert all(str(path) in words and words.isprintable() for words in said)
        read_idle(warn=said.append)
        if found is not None:  # else it takes a sample, and needs a driver
            used += 1
            for how in ([], ["--json"], ["--tmux"]):
                assert run(capsys, path, "status", *how) == 0
    path.write_bytes(figures())
    assert read_status() is not None
    assert used < SEEDS
