"""What was acknowledged and muted, on disk: kept over restarts, and the same for two who change it."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import NO_ATTENTION, Acknowledgement, Attention, Mute
from gpuwatch.recorder.attention import AttentionFile, Change
from gpuwatch.recorder.events_log import for_host
from tests.support.builders import EPOCH
from tests.support.eventlogs import PATIENCE, alert, frame, wait_for
from tests.support.gpuholder import ROOT, SOMEBODY_ELSE
from tests.support.homes import plant_drafts
from tests.support.watches import LONG, Reader, Script, full, watching

NOW = EPOCH + 1000.0


class Person:
    """A gpuwatch as its attention file sees it: what is handed over comes back in a frame, in order."""

    def __init__(self, folder: Path) -> None:
        self.attention = self.attended = NO_ATTENTION
        self.changes = 0
        """How often it was handed something."""
        self._lock = threading.Lock()
        self.file = AttentionFile(attend=self._attend, folder=folder, poll=0.02, retry=0.05, wall=lambda: NOW)
        self.path = folder / f"{for_host('attention')}.json"
        self.file.start()

    def _attend(self, attention: Attention) -> None:
        with self._lock:
            self.attention = self.attended = attention
            self.changes += 1
            self.file.take(frame(attention=attention, attended=attention))

    def do(self, change: Callable[[Attention], Attention]) -> None:
        """Let the user change something."""
        with self._lock:
            self.attention = change(self.attention)
            self.file.take(frame(attention=self.attention, attended=self.attended))

    def acknowledge(self, name: str) -> None:
        self.do(lambda before: before.acknowledged(alert(name), NOW))

    def unacknowledge(self, name: str) -> None:
        self.do(lambda before: before.unacknowledged(alert(name)))

    def mute(self, rule: str, until: float | None = None) -> None:
        self.do(lambda before: before.muted(Mute(rule=rule, until=until)))

    def unmute(self, rule: str) -> None:
        self.do(lambda before: before.unmuted(rule))

    def knows(self) -> set[str]:
        """Return the GPUs whose alert is acknowledged, and the rules that are muted."""
        return words(self.attention)

    def saved(self) -> set[str]:
        """The same of what the file says."""
        if not self.path.exists():
            return set()
        return words(NO_ATTENTION if not (raw := self.path.read_bytes()) else _decoded(raw))


def _decoded(raw: bytes) -> Attention:
    import msgspec

    return msgspec.convert(json.loads(raw)["attention"], Attention)


def words(attention: Attention) -> set[str]:
    return {one.key.rpartition("-")[2] for one in attention.acks} | {one.rule for one in attention.mutes}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "gpuwatch"


@pytest.fixture
def person(folder: Path) -> Iterator[Callable[[], Person]]:
    """Return a function that starts a gpuwatch; all are closed."""
    made: list[Person] = []

    def make() -> Person:
        made.append(Person(folder))
        return made[-1]

    yield make
    for one in made:
        one.file.close(PATIENCE)
        assert not one.file._thread.is_alive()


Make = Callable[[], Person]


def test_what_was_said_is_there_after_a_restart(person: Make) -> None:
    first = person()
    first.acknowledge("a")
    first.mute("uses more than declared")
    first.file.close(PATIENCE)
    second = person()
    wait_for(lambda: second.knows() == {"a", "uses more than declared"})
    assert second.changes == 1


def test_folder_and_file_are_private(person: Make) -> None:
    one = person()
    one.mute("uses more than declared")
    wait_for(one.path.exists)
    assert stat.S_IMODE(one.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(one.path.parent.stat().st_mode) == 0o700


def test_two_who_change_it_end_up_with_the_same(person: Make) -> None:
    first, second = person(), person()
    first.acknowledge("a")
    second.mute("uses more than declared")
    everything = {"a", "uses more than declared"}
    wait_for(lambda: first.knows() == second.knows() == first.saved() == everything)
    second.unmute("uses more than declared")
    wait_for(lambda: first.knows() == second.knows() == first.saved() == {"a"})
    second.unacknowledge("a")
    wait_for(lambda: first.knows() == second.knows() == first.saved() == set())


def test_what_many_say_at_once_is_all_kept(person: Make) -> None:
    people = [person() for _ in range(3)]
    names = [f"{who}{number}" for who in range(3) for number in range(10)]
    for number in range(10):
        for who, one in enumerate(people):
            one.acknowledge(f"{who}{number}")
    # Two changes that cross each other within a moment may undo one on a screen, but never in the file.
    wait_for(lambda: people[0].saved() == set(names))
    wait_for(lambda: all(one.knows() == set(names) for one in people))


def test_nobody_goes_round_in_circles(person: Make) -> None:
    first, second = person(), person()
    first.acknowledge("a")
    wait_for(lambda: second.knows() == {"a"})
    before = (first.path.stat().st_mtime_ns, first.changes, second.changes)
    for _ in range(5):
        first.file.take(frame(attention=first.attention, attended=first.attended))
        second.file.take(frame(attention=second.attention, attended=second.attended))
    third = person()
    wait_for(lambda: third.knows() == {"a"})
    third.file.close(PATIENCE)
    assert (first.path.stat().st_mtime_ns, first.changes, second.changes) == before
    assert before[1:] == (0, 1)


@pytest.mark.parametrize("user_first", [True, False])
def test_a_mark_made_while_another_gpuwatchs_is_taken_over_is_kept(
    person: Make, folder: Path, user_first: bool
) -> None:
    """A real watch, held up in its source while its user mutes a rule and the file brings what another muted."""
    held, release, handed, reader = threading.Event(), threading.Event(), threading.Event(), Reader()

    def hold() -> None:
        held.set()
        assert release.wait(LONG)

    source = Script([full(0), hold, full(1)])
    watch = watching(source, reader)

    def attend(attention: Attention) -> None:
        watch.attend(attention)
        if words(attention):
            handed.set()

    file = AttentionFile(attend=attend, folder=folder, poll=0.02, wall=lambda: EPOCH)
    watch.add(file)
    file.start()
    assert held.wait(LONG)
    if user_first:
        watch.mute(Mute(rule="ours"))
    other = person()
    other.mute("theirs")
    assert handed.wait(LONG)
    if not user_first:
        watch.mute(Mute(rule="ours"))
    release.set()
    _, after = reader.take(2)
    assert words(after.attention) == {"ours", "theirs"}
    wait_for(lambda: other.saved() == other.knows() == {"ours", "theirs"})
    # What was merged is not taken for the user's own: what the other takes back stays so, and nothing is undone.
    watch.unmute("ours")
    other.unmute("theirs")
    wait_for(lambda: other.saved() == other.knows() == set())

    def shown() -> set[str] | None:
        source.steps.put(full(2))
        return words(watch.newest.attention) if watch.newest else None

    wait_for(lambda: shown() == set())
    watch.stop()
    file.close(PATIENCE)


def test_what_is_out_of_date_is_not_kept(person: Make) -> None:
    first = person()
    first.mute("uses more than declared", until=NOW - 1)
    first.mute("throttled", until=NOW + 1)
    wait_for(lambda: first.saved() == {"throttled"})


def test_a_demo_changes_nothing(person: Make) -> None:
    one = person()
    one.file.take(frame(attention=NO_ATTENTION.muted(Mute(rule="uses more than declared")), demo=True))
    one.file.close(PATIENCE)
    assert not one.path.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"schema":1,"attention":{"acks":[{"key":1}]}}',
        b'{"schema":1,"attention":{"acks":[{"key":"k","at":1e300}]}}',
        b"x" * (2 << 20),
    ],
)
def test_a_damaged_file_is_kept_and_told_of(person: Make, folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    path = folder / f"{for_host('attention')}.json"
    path.write_bytes(content)
    one = person()
    damaged = path.with_name(f"{path.name}.damaged")
    wait_for(damaged.exists)
    assert damaged.read_bytes() == content
    expected = f"attention: {path.name} was damaged and is kept as {damaged.name}; it is begun anew"
    wait_for(lambda: one.file.trouble == expected, one.file.trouble)
    one.mute("uses more than declared")
    wait_for(lambda: one.saved() == {"uses more than declared"})


def test_what_was_known_is_written_again_after_damage(person: Make) -> None:
    one = person()
    one.acknowledge("a")
    wait_for(lambda: one.saved() == {"a"})
    one.path.write_bytes(b"rubbish")
    wait_for(one.path.with_name(f"{one.path.name}.damaged").exists)
    wait_for(lambda: one.saved() == {"a"})
    assert one.knows() == {"a"}


def test_a_file_that_is_taken_away_changes_nothing_and_comes_back(person: Make) -> None:
    one = person()
    one.acknowledge("a")
    wait_for(lambda: one.saved() == {"a"})
    one.path.unlink()
    one.acknowledge("b")
    wait_for(lambda: one.saved() == {"a", "b"})


def test_a_file_of_a_newer_gpuwatch_is_left_alone(person: Make, folder: Path) -> None:
    folder.mkdir(parents=True)
    path = folder / f"{for_host('attention')}.json"
    path.write_bytes(b'{"schema":2,"attention":{}}')
    one = person()
    wait_for(lambda: "written by a newer gpuwatch" in one.file.trouble)
    one.mute("uses more than declared")
    wait_for(lambda: one.file.trouble.endswith("is kept in this gpuwatch alone"))
    assert path.read_bytes() == b'{"schema":2,"attention":{}}'


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_what_is_no_file_of_ours_is_left_alone(person: Make, folder: Path, tmp_path: Path, what: str) -> None:
    folder.mkdir(parents=True)
    path = folder / f"{for_host('attention')}.json"
    (tmp_path / "precious").write_text("mine")
    if what == "link":
        path.symlink_to(tmp_path / "precious")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    one = person()
    one.mute("uses more than declared")
    wait_for(lambda: one.file.trouble.startswith(f"attention: {path}: "))
    assert (tmp_path / "precious").read_text() == "mine"
    assert path.is_symlink() or not path.is_file()


@pytest.mark.skipif(not ROOT, reason="giving a file to another user needs root")
def test_a_file_of_another_user_is_not_believed(person: Make, folder: Path) -> None:
    folder.mkdir(parents=True)
    path = folder / f"{for_host('attention')}.json"
    path.write_bytes(b'{"schema":1,"attention":{"mutes":[{"rule":"uses more than declared"}]}}')
    os.chown(path, SOMEBODY_ELSE, SOMEBODY_ELSE)
    one = person()
    wait_for(lambda: "belongs to uid" in one.file.trouble)
    assert one.knows() == set()


def test_drafts_of_killed_writers_are_removed(person: Make, folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    dead, kept = plant_drafts(folder, f"{for_host('attention')}.json")
    one = person()
    one.acknowledge("a")
    wait_for(lambda: one.saved() == {"a"})
    left = {one.name for one in folder.iterdir()}
    assert not left & dead
    assert left >= kept


def test_what_could_not_be_saved_is_saved_later(person: Make, folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    one = person()
    one.acknowledge("a")
    one.mute("uses more than declared")
    expected = f"attention: {one.path}: not a directory; what you acknowledged or muted is kept in this gpuwatch alone"
    wait_for(lambda: one.file.trouble == expected, one.file.trouble)
    folder.unlink()
    wait_for(lambda: one.saved() == {"a", "uses more than declared"})
    wait_for(lambda: one.file.trouble == "")


def test_texts_are_cleaned(person: Make, folder: Path) -> None:
    folder.mkdir(parents=True)
    path = folder / f"{for_host('attention')}.json"
    path.write_text('{"schema":1,"attention":{"mutes":[{"rule":"\\u001b[31m"}]}}')
    one = person()
    wait_for(lambda: one.knows() == {"�[31m"})


def test_it_costs_nothing_to_close_what_was_never_started(folder: Path) -> None:
    AttentionFile(attend=print, folder=folder).close(1.0)
    assert not folder.exists()


states = st.builds(
    lambda acks, mutes: Attention(
        acks=tuple(Acknowledgement(key=key, at=NOW - at) for key, at in acks.items()),
        mutes=tuple(Mute(rule=rule, until=None if until is None else NOW + until) for rule, until in mutes.items()),
    ),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)),
    st.dictionaries(st.sampled_from("xyz"), st.none() | st.integers(1, 3)),
)


def same(one: Attention, other: Attention) -> bool:
    return not Change.between(one, other)


@given(states, states, states)
def test_changes_add_up(one: Attention, other: Attention, third: Attention) -> None:
    first, second = Change.between(one, other), Change.between(other, third)
    assert same(first.applied(one, NOW), other)
    assert same(first.then(second).applied(one, NOW), third)
    assert not Change.between(one, one)


@given(states, states, states)
def test_a_change_touches_nothing_else(one: Attention, other: Attention, disk: Attention) -> None:
    change = Change.between(one, other)
    result: Any = change.applied(disk, NOW)
    assert {ack.key: ack for ack in result.acks if ack.key not in change.acks} == {
        ack.key: ack for ack in disk.acks if ack.key not in change.acks
    }
