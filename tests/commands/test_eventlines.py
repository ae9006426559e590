"""What `gpuwatch watch` prints, line by line, and how it prints."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity, Unit
from gpuwatch.commands.watch import LineFormatter, Printer, TroubleFinder, find_changes
from gpuwatch.history import History
from gpuwatch.model import SourceState
from gpuwatch.monitor import Frame
from tests.support.builders import EPOCH, GIB, gpu, snapshot
from tests.support.waiting import PATIENCE, wait_for


def alert(rule: str = "memory near limit", **changes: Any) -> Alert:
    """Return an alert that was raised at EPOCH."""
    fields: dict[str, Any] = {
        "rule": rule,
        "gpu": "GPU-1",
        "severity": Severity.WARNING,
        "title": "GPU 3 full in about 4 min",
        "raised": EPOCH,
    }
    return Alert(**{**fields, **changes})


def frame(*alerts: Alert, at: float = EPOCH, **changes: Any) -> Frame:
    """Return a frame with alerts that hold."""
    fields = {name: changes.pop(name, ()) for name in ("raised", "cleared", "eased")}
    return Frame(snapshot([gpu(0)], taken=at, **changes), 0.0, History().view, alerts, **fields)


def told(*frames: Frame) -> list[str]:
    """Return the lines that some frames come to, their clock times left out."""
    lines = LineFormatter()
    return [re.sub(r"^.*\d\d:\d\d:\d\d ", "", lines.format(one)) for each in frames for one in find_changes(each)]


def test_a_life_in_lines() -> None:
    first = alert(evidence="ada grew 9.0 GiB/min")
    bad = alert(severity=Severity.CRITICAL, raised_monotonic=-1.0, title="GPU 3 full", unit=Unit.FREE, peak=0.1 * GIB)
    over = alert(
        ended=EPOCH + 388,
        lasted=388.0,
        how="back within the limit",
        title="GPU 3 full",
        peak=0.1 * GIB,
        unit=Unit.FREE,
    )
    assert told(
        frame(first, raised=(first,)),
        frame(bad, raised=(bad,)),
        frame(first, eased=(first,)),
        frame(cleared=(over,)),
        frame(first, raised=(first,)),
    ) == [
        "▲ raised  GPU 3 full in about 4 min · ada grew 9.0 GiB/min",
        "● worse   GPU 3 full",
        "▲ eased   GPU 3 full in about 4 min · ada grew 9.0 GiB/min",
        "✓ ended after 6 min 28 s  GPU 3 full · back within the limit · at worst 0.1 GiB free",
        "▲ raised  GPU 3 full in about 4 min · ada grew 9.0 GiB/min",
    ]


def test_the_date_stands_where_the_day_changes() -> None:
    lines = LineFormatter()
    dated = []
    for at in (EPOCH, EPOCH + 1, EPOCH + 86400):
        one = alert(raised=at, gpu=str(at))
        dated += [lines.format(event)[:10] for event in find_changes(frame(one, raised=(one,), at=at))]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", dated[0])
    assert re.match(r"\d\d:\d\d:\d\d ", dated[1])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", dated[2])


def test_troubles_are_said_once_and_when_they_are_over() -> None:
    troubles = TroubleFinder()
    full = alert(TROUBLE, subject="recorder", title="not recorded: no space left")
    down: dict[str, Any] = {"state": SourceState.DRIVER_DOWN, "words": "the driver does not answer"}
    starting: dict[str, Any] = {"state": SourceState.STARTING}
    said = [
        list(troubles.find(each))
        for each in (
            frame(),
            frame(full),
            frame(full),
            frame(),
            frame(**down),
            frame(**starting),
            frame(**down),
            frame(),
        )
    ]
    assert said == [
        [],
        ["not recorded: no space left"],
        [],
        ["recorder: all is well again"],
        ["the driver does not answer; gpuwatch waits until it is over"],
        [],
        [],
        ["the driver answers: 1 GPU"],
    ]


def test_a_trouble_that_only_grows_is_not_said_again() -> None:
    troubles = TroubleFinder()

    def said(subject: str, words: str) -> list[str]:
        return list(troubles.find(frame(alert(TROUBLE, subject=subject, title=words))))

    assert said("recorder", "not recorded: no space left")
    assert said("recorder", "not recorded: no space left; 1 event waits") == []
    assert said("recorder", "not recorded: no space left; 10 events wait, 3 are lost") == []
    assert said("recorder", "not recorded: /x: read-only file system; 10 events wait")
    deaf = "not recorded: another gpuwatch of yours records, and has not answered for"
    assert said("recorder", f"{deaf} 60s")
    assert said("recorder", f"{deaf} 62s") == []
    assert said("messages", "messages: a is too slow; 1 message not delivered")
    assert said("messages", "messages: a is too slow; 1 message not delivered; b refuses (HTTP 500)")


def test_a_printer_never_waits_and_says_what_it_dropped() -> None:
    reader, writer = os.pipe()
    printer = Printer(writer, waiting=10)
    line = "x" * 8000
    for number in range(100):  # 64 KiB fit into the pipe
        printer.put(f"{number} {line}")
    chunks = []

    def have_all() -> bool:
        chunks.append(os.read(reader, 1 << 16))
        return b"99 xxx" in b"".join(chunks[-2:])

    wait_for(have_all)
    assert b"lines were not printed: nothing took them" in b"".join(chunks)
    printer.put("the end")
    printer.close(PATIENCE)
    assert os.read(reader, 1 << 16).endswith(b"the end\n")
    os.close(reader)
    os.close(writer)


def test_a_printer_goes_on_when_a_full_disk_has_room_again(tmp_path: Path) -> None:
    taken, file = os.open("/dev/full", os.O_WRONLY), os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    printer = Printer(os.dup(taken))
    printer.put("a")
    wait_for(lambda: printer._lost == 1)
    assert not printer.broken
    os.dup2(file, printer._descriptor or -1)
    printer.put("b")
    printer.close(PATIENCE)
    assert (tmp_path / "out").read_text() == "gpuwatch: 1 line was not printed: nothing took them\nb\n"
    for each in (taken, file, printer._descriptor or -1):
        os.close(each)


def test_a_printer_outlives_its_reader() -> None:
    reader, writer = os.pipe()
    printer = Printer(writer)
    os.close(reader)
    printer.put("nobody hears it")
    wait_for(lambda: printer.broken)
    printer.put("nor this")
    printer.close(PATIENCE)
    os.close(writer)
    assert Printer(None).broken
