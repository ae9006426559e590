"""A person who is deleted from a store: nothing names them, and the sums of each GPU stay true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Alert, AlertCause, AlertGpu, AlertUser, Mute
from gpuwatch.history.timeline import Key, Metric, Minute
from gpuwatch.recorder.events import read_events
from gpuwatch.recorder.forget import forget_user
from gpuwatch.recorder.marks import write_marks
from gpuwatch.recorder.opening import reading
from gpuwatch.recorder.store import Store
from gpuwatch.recorder.use import By, read_means
from tests.support.builders import EPOCH, GIB
from tests.support.store import HOUR, Record, alert, ask, batch, ended, hours, read_report, recording, save

ADA, BEN = 1000, 1001
WAYS: tuple[By, ...] = ("user", "gpu", "run")


def event(name: str, *, title: str, gpu: str = "GPU-0", **changes: Any) -> Alert:
    return ended(alert(name, gpus=(AlertGpu(gpu, 0),), raised=HOUR + 60.0, title=title, **changes))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with use, events and marks: of ada, who is deleted, of ben, and of an unknown user."""
    path = tmp_path / "gpuwatch-box3.2.sqlite"
    causes = (AlertCause(uid=ADA, user="ada", pid=1, run="1:1"), AlertCause(uid=BEN, user="ben", pid=7, run="7:7"))
    events = [
        event("full", title="GPU 0 full: ada holds it", causes=causes, users=(AlertUser(ADA, "ada"),)),
        event("said", title="GPU 0 full", evidence="ben holds 9 GiB · ada grew 2 GiB", users=(AlertUser(BEN, "ben"),)),
        event("idle", title="idle", subject=f"uid:{ADA} GPU-0"),
        event("bens", title="ben runs adapter.py", causes=causes[1:], owners=("ben",)),
    ]
    means = batch(HOUR, 0)
    means.means = [Minute(at=float(HOUR), values={str(Key("GPU-0", f"user:{ADA}", Metric.MEMORY)): 5.0}, users={})]
    use = [
        batch(HOUR, 0, use=hours(1, gib=20)),
        batch(HOUR, 0, use=hours(1, gib=5), run="2:2"),
        batch(HOUR, 1, use=hours(0.5)),
        batch(HOUR, 0, user="ben", uid=BEN, run="7:7", use=hours(1)),
        batch(HOUR, 0, user="?", uid=-1, run="", name="?", use=hours(1)),
        means,
    ]
    save(path, *use, events=events)
    muted: dict[tuple[str, str, str], Any] = {}
    for uid in (ADA, BEN):
        key = f"idle memory|box3|uid:{uid} GPU-0"
        muted["mute", "idle memory", key] = Mute(rule="idle memory", key=key, until=EPOCH + 1e6)

    def write(connection: Connection) -> None:
        write_marks(connection, muted, EPOCH)

    Store(path).write(write)
    return path


def sums(path: Path, by: By) -> list[tuple[str, float, float]]:
    lines = read_report([path], by, HOUR).lines
    return sorted((one.name, round(one.use.gpu), round(one.use.memory / GIB)) for one in lines)


def test_their_use_is_that_of_an_unknown_user_and_the_sums_stay_true(store: Path) -> None:
    before = {by: sums(store, by) for by in WAYS}
    total = read_report([store], "user", HOUR).total
    counts = forget_user(store, ADA, "ada")
    assert counts["names"] == 1
    assert counts["runs"] == 2
    assert sums(store, "gpu") == before["gpu"]
    assert read_report([store], "user", HOUR).total == total
    mine, ben, nobody = (next(one for one in before["user"] if one[0] == name) for name in ("ada", "ben", "?"))
    assert sums(store, "user") == [("?", mine[1] + nobody[1], mine[2] + nobody[2]), ben]
    assert {name for name, *_ in sums(store, "run")} == {"?", "train.py"}


def test_no_byte_of_the_file_names_them(store: Path) -> None:
    assert b"ada" in store.read_bytes()
    forget_user(store, ADA, "ada")
    content = store.read_bytes().replace(b"adapter.py", b"")
    assert b"ada" not in content
    assert f"uid:{ADA}".encode() not in content
    assert f"user:{ADA}".encode() not in content
    assert ask(store, "SELECT count(*) FROM graph_values") == [(0,)]
    with reading(store) as connection:  # the use has whose memory it was, in place of those values
        (one, *_) = read_means(connection, HOUR, HOUR + 60)
    assert {name.split("/")[1] for name in one.values if name.endswith("/memory")} == {"user:?", f"user:{BEN}"}


def test_events_stay_without_their_words_where_these_name_the_person(store: Path) -> None:
    assert forget_user(store, ADA, "ada")["events"] == 3
    found = read_events(store)
    assert not found.damaged
    assert {one.id: one.title for one in found.alerts} == {
        **dict.fromkeys(("id-full", "id-said", "id-idle"), "GPU 0: nearly full"),
        "id-bens": "ben runs adapter.py",
    }
    assert all(one.ended == HOUR + 120.0 for one in found.alerts)
    counts = {line.name: line.events.all for line in read_report([store], "user", HOUR).lines}
    assert counts == {"?": 1, "ben": 1}


def test_their_marks_are_deleted_and_a_second_time_nothing_is_found(store: Path) -> None:
    assert forget_user(store, ADA, "ada")["marks"] == 1
    assert ask(store, "SELECT key FROM marks") == [(f"idle memory|box3|uid:{BEN} GPU-0",)]
    assert not any(forget_user(store, ADA, "ada").values())


def test_who_is_not_in_the_store_changes_nothing(store: Path) -> None:
    before = [sums(store, by) for by in WAYS]
    assert not any(forget_user(store, 1234, "eve").values())
    assert [sums(store, by) for by in WAYS] == before
    assert ask(store, "SELECT count(*) FROM graph_values") == [(1,)]


def test_a_name_is_found_by_its_number(store: Path) -> None:
    forget_user(store, ADA, str(ADA))
    assert b"ada" not in store.read_bytes().replace(b"adapter.py", b"")


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with recording(tmp_path) as made:
        yield made


def test_a_gpuwatch_that_records_goes_on(record: Record) -> None:
    old, held = ended(alert("old", title="ada holds it")), alert("held", title="ben holds it")
    one = record().settle()
    one.feed(old, held)
    one.feed(held, cleared=[old])
    one.expect("id-old ended", "id-held warning")
    assert forget_user(one.path, ADA, "ada")["events"] == 1
    one.feed(cleared=[ended(held)])
    one.expect("id-old ended", "id-held ended")
    assert one.trouble == ""
    assert msgspec.structs.asdict(read_events(one.path).alerts[0])["title"] == "GPU 0: nearly full"
