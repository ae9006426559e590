"""The events log on a bad day: full disks, files that are taken away or are something else, faults of our own."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.errors import UsageError
from gpuwatch.recorder.event_writer import MOST, EventsLog, Pace
from gpuwatch.recorder.events_log import log_name, read_events
from tests import CHECKOUT
from tests.support.builders import EPOCH
from tests.support.eventlogs import PATIENCE, QUICK, Keep, Keeper, alert, ended, frame, keeping, lines, story, wait_for
from tests.support.gpuholder import ROOT, SOMEBODY_ELSE, unavailable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "state" / "gpuwatch"


@pytest.fixture
def keep(folder: Path) -> Iterator[Keep]:
    """Return a function that makes a log in the folder."""
    with keeping(folder) as make:
        yield make


# ---------------------------------------------------------------------------------------------------------------
# What goes wrong


class Disk:
    """Writes as a disk with so much room would."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.error = errno.ENOSPC

    def write(self, file: int, content: bytes) -> int:
        if self.room is None:
            return os.write(file, content)
        if not self.room:
            raise OSError(self.error, os.strerror(self.error))
        content = content[: self.room]
        self.room -= len(content)
        return os.write(file, content)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errno.ENOSPC, "no space left on device"),
        (errno.EDQUOT, "disk quota exceeded"),
        (errno.EIO, "input/output error"),
        (errno.EROFS, "{path}: read-only file system"),
    ],
)
@pytest.mark.parametrize("room", [0, 40])
def test_a_full_disk_is_told_and_written_to_later(keep: Keep, error: int, words: str, room: int) -> None:
    disk = Disk()
    log = keep(write=disk.write).settle()
    disk.room, disk.error = room, error
    log.feed(alert())
    log.feed(alert(), alert("b"))
    log.feed(alert("b"), cleared=[ended(alert())])
    expected = f"events log: {words.format(path=log.path)}; 3 events wait"
    wait_for(lambda: log.log.trouble == expected, f"it says {log.log.trouble!r}")
    assert log.log.is_holder
    assert read_events(log.path).damaged == 0
    disk.room = None
    log.expect("raised id-a", "raised id-b", "ended id-a")
    wait_for(lambda: log.log.trouble == "")
    assert read_events(log.path).damaged == 0


def test_more_than_can_wait_is_lost_and_said(keep: Keep) -> None:
    disk = Disk()
    log = keep(write=disk.write).settle(alert("stays"), alert("goes"))
    log.expect("raised id-stays", "raised id-goes")
    disk.room = 0
    for start in range(0, MOST + 1000, 1000):
        log.log.take(frame(alert("stays"), *(alert(str(number)) for number in range(start, start + 1000))))
    log.log.take(frame(alert("stays"), alert("new"), cleared=[ended(alert("goes"))]))
    wait_for(lambda: "are lost" in log.log.trouble)
    disk.room = None
    wait_for(lambda: "raised id-new" in story(log.path))
    found = read_events(log.path)
    (gap,) = found.gaps
    assert gap.lost > 0
    assert {one.id for one in found.open} == {"id-stays", "id-new"}
    (gone,) = [one for one in found.alerts if one.id == "id-goes"]
    assert gone.how == "ended while the log could not be written"


def test_a_torn_line_harms_no_other(keep: Keep) -> None:
    first = keep().settle()
    first.feed(alert())
    first.expect("raised id-a")
    first.close()
    with first.path.open("ab") as file:
        file.write(b'{"at":17000')
    second = keep(now=first.now + 5).settle(alert())
    second.feed(alert(), alert("b"))
    wait_for(lambda: "id-b" in first.path.read_text())
    found = read_events(first.path)
    assert {one.id for one in found.open} == {"id-a", "id-b"}
    assert found.damaged == 1


def test_a_file_that_is_taken_away_is_begun_anew_with_what_holds(keep: Keep) -> None:
    log = keep().settle(alert())
    log.expect("raised id-a")
    log.path.unlink()
    log.feed(alert(), alert("b"))
    log.expect("carried id-a", "raised id-b")
    assert lines(log.path)[0]["schema"] == 1


def test_a_folder_that_is_taken_away_is_made_again(keep: Keep, folder: Path) -> None:
    log = keep().settle(alert())
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    wait_for(lambda: log.path.exists() or folder.exists())
    log.settle(alert())
    wait_for(lambda: "id-a" in log.path.read_text())


@pytest.mark.parametrize("what", ["link", "folder", "pipe"])
def test_what_is_no_file_of_ours_is_left_alone(keep: Keep, folder: Path, tmp_path: Path, what: str) -> None:
    folder.mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    place = folder / log_name()
    if what == "link":
        place.symlink_to(precious)
    elif what == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)
    log = keep()
    log.feed(alert())
    wait_for(lambda: log.log.trouble)
    assert log.log.trouble.startswith(f"events log: {place}: ")
    assert log.log.is_holder
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_cannot_be_read_is_not_tried_again_at_once(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "state"
    if what == "folder":
        (folder / log_name()).mkdir(parents=True)
    else:
        folder.touch()
    log = EventsLog(folder=folder, pace=Pace(retry=1000.0, lock=0.001, touch=0.001))
    log.take(frame(alert()))
    wait_for(lambda: log.trouble and log._is_due("touch"))
    assert log._pause() > 900.0
    log.close(PATIENCE)


def test_a_folder_that_cannot_be_made_is_told_and_messages_are_still_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = Keeper(tmp_path / "file" / "gpuwatch")
    log.feed(alert())
    wait_for(lambda: log.log.trouble.endswith(f"{log_name()}: not a directory; 1 event waits"))
    assert log.log.is_holder
    log.feed(cleared=[ended(alert())])
    log.feed(alert("b"))
    (tmp_path / "file").unlink()
    log.settle(alert("b"))
    log.expect("raised id-a", "ended id-a", "raised id-b")
    assert log.log.trouble == ""
    log.close()


@pytest.mark.skipif(not ROOT, reason="giving a file to another user needs root")
def test_a_log_of_another_user_is_not_written_to(keep: Keep, folder: Path) -> None:
    folder.mkdir(parents=True)
    place = folder / log_name()
    place.touch()
    os.chown(place, SOMEBODY_ELSE, SOMEBODY_ELSE)
    log = keep()
    log.feed(alert())
    wait_for(lambda: log.log.trouble)
    assert f"events log: {place}: the file belongs to uid {SOMEBODY_ELSE}" in log.log.trouble
    assert place.stat().st_size == 0


def test_a_disk_that_hangs_holds_up_nobody(folder: Path) -> None:
    hang, hanging = threading.Event(), threading.Event()

    def write(file: int, content: bytes) -> int:
        if b"id-hang" in content:
            hanging.set()
            hang.wait(PATIENCE)
        return os.write(file, content)

    log = Keeper(folder, write=write).settle()
    log.feed(alert("hang"))
    assert hanging.wait(PATIENCE)
    for _ in range(50):
        log.feed(alert("hang"), alert())
    log.log.close(0.01)
    assert log.log._thread.is_alive()
    hang.set()
    log.close()
    assert "raised id-a" in log.told()


def test_a_fault_of_our_own_is_told(folder: Path) -> None:
    failing = threading.Event()

    def write(file: int, content: bytes) -> int:
        if failing.is_set():
            raise TypeError("no such thing")
        return os.write(file, content)

    log = Keeper(folder, write=write).settle()
    failing.set()
    log.feed(alert())
    wait_for(lambda: log.log.trouble == "events log: TypeError: no such thing; 1 event waits")
    failing.clear()
    log.expect("raised id-a")
    log.close()


FULL = """
set -e
mount -t tmpfs -o size=64k,mode=700 none "$1"
exec "$2" - "$1" <<'END'
import sys
from pathlib import Path
from tests.support.eventlogs import Keeper, alert, wait_for
folder = Path(sys.argv[1])
keeper = Keeper(folder).settle()
hog = folder / "hog"
with hog.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError as error:
        print(error.strerror)
held = [alert(str(number), evidence="e" * 1000) for number in range(40)]
keeper.feed(*held)
wait_for(lambda: keeper.log.trouble)
print(keeper.log.trouble)
hog.unlink()
wait_for(lambda: len(keeper.told()) == 40)
wait_for(lambda: not keeper.log.trouble)
keeper.close()
print("written")
END
"""


@pytest.mark.skipif(not ROOT, reason="mounting a small disk needs root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    try:
        probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, timeout=PATIENCE)
    except OSError as error:
        unavailable(f"unshare: {error}")
    if probe.returncode:
        unavailable(f"a mount namespace: {probe.stderr.decode().strip()}")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", FULL, "sh", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE,
        cwd=CHECKOUT,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "No space left on device",
        "events log: no space left on device; 40 events wait",
        "written",
    ]
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------------
# A file that the user names


@pytest.mark.parametrize("what", ["text", "folder", "pipe", "link", "nowhere"])
def test_a_named_file_that_is_something_else_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "mine.jsonl"
    if what == "text":
        path.write_text("shopping list\n")
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to("/dev/null")
    else:
        path = tmp_path / "missing" / "mine.jsonl"
    with pytest.raises(UsageError, match=str(path)):
        EventsLog(path=path)
    if what == "text":
        assert path.read_text() == "shopping list\n"


def test_a_named_file_that_we_wrote_is_gone_on_with(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "mine.jsonl"
    first = Keeper(tmp_path, path=path).settle(alert())
    first.expect("raised id-a")
    first.close()
    second = Keeper(tmp_path, path=path, now=first.now + 5).settle(alert())
    second.close()
    assert story(path).count("raised id-a") == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


# ---------------------------------------------------------------------------------------------------------------
# Odds and ends


def test_it_costs_nothing_to_close_what_was_never_started(folder: Path) -> None:
    log = EventsLog(folder=folder)
    log.close(1.0)
    assert log.trouble == ""
    assert not log.is_holder
    assert not folder.exists()


def test_what_still_holds_is_told_every_now_and_then(keep: Keep) -> None:
    log = keep(pace=QUICK._replace(carry=0.0)).settle(alert(peak=1.0))
    log.feed(alert(peak=3.0))
    wait_for(lambda: any(one.get("alert", {}).get("peak") == 3.0 for one in lines(log.path)))
    assert "carried id-a" in story(log.path)


def test_an_alert_that_is_made_anew_each_sample_is_written_once(keep: Keep) -> None:
    log = keep().settle()
    for number in range(30):
        log.feed(msgspec.structs.replace(alert(), seen=EPOCH + number, title=f"GPU a: {number}"))
    log.expect("raised id-a")
