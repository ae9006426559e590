"""`gpuwatch doctor`: checks of the machine, the terminal and the files, each with a suggested fix; changes nothing."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from gpuwatch.base import files, procfs
from gpuwatch.base.errors import GpuwatchError
from gpuwatch.base.text import clean
from gpuwatch.commands.config import OPEN, find_closed, find_readable
from gpuwatch.commands.console import GREEN, YELLOW, Console, fold
from gpuwatch.commands.flags import add_flags
from gpuwatch.commands.startup import read_snapshot
from gpuwatch.config.paths import ADMINISTRATORS
from gpuwatch.config.paths import path as own_path
from gpuwatch.config.reading import load_traced
from gpuwatch.config.types import Config
from gpuwatch.inspector.terminals import PaneNames
from gpuwatch.model.live import SERVICE, LiveFileError, Status, read_service
from gpuwatch.model.snapshot import Health, Snapshot, SourceState
from gpuwatch.recorder.opening import StoreError, reading
from gpuwatch.recorder.public import refused_day
from gpuwatch.recorder.schema import DAYS, day_of, own_store, public_files, read_about
from gpuwatch.sampler.machine import hides_pids, in_container, loaded_driver
from gpuwatch.sources.sampler_process import SamplerProcess
from gpuwatch.ui.draw.layout import MIN_HEIGHT, MIN_WIDTH
from gpuwatch.version import __version__

_MARK_WIDTH: Final = 4
_TMUX_OPTIONS: Final = ("set-clipboard", "allow-passthrough")
_MOST_PROGRAMS: Final = 1000


class CheckMark(StrEnum):
    OK = "ok"
    FIX = "fix"
    """Something is wrong; the exit code is 1."""
    NOTE = "note"
    """It limits what gpuwatch shows, or could not be checked; nothing is broken."""


CHECKS: Final = {
    "driver": "the versions of the driver's library and kernel module, and whether they match",
    "GPUs": "the health of each GPU, and whether its list of processes is complete",
    "persistence mode": "whether it is on; without it, the first program on an idle GPU starts 1 to 3 s later",
    "device files": "whether you may open `/dev/nvidia*`",
    "hidepid": "whether `/proc` hides the processes of other users",
    "service": "whether the machine's service runs, and what it publishes for everybody",
    "container": "in a container: its own PIDs, hidden GPUs, the capability `utility`",
    "terminal": "TERM, UTF-8 and the size of the terminal",
    "clipboard": "in tmux: whether `set-clipboard` or `allow-passthrough` lets `y` copy to the clipboard (OSC 52)",
    "configuration": "mistakes in `gpuwatch.toml`, and who can read its secrets",
    "store": "whether your store can be read and written: permissions, and space on its disk",
}
"""What each check examines, in their order, for the documentation."""


class Check(msgspec.Struct, frozen=True):
    """One line: what was checked, what was found, and the suggested fix."""

    name: str
    mark: CheckMark
    found: str
    fix: str = ""


class DoctorJson(msgspec.Struct, frozen=True):
    """JSON of `doctor`."""

    version: str
    """Version of gpuwatch."""
    host: str
    checks: Sequence[Check]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Machine that is checked: its folders, environment and user. A test passes its own."""

    proc: Path = procfs.PROC
    root: Path = Path("/")
    environ: Mapping[str, str] = os.environ
    uid: int = msgspec.field(default_factory=os.geteuid)
    is_terminal: bool = True
    encoding: str = "utf-8"
    size: tuple[int, int] = (80, 24)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json")
    parser.add_argument("--share", action="store_true", help="print what the machine's service publishes about you")


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print a line for each check; return 1 where something is to be fixed."""
    console = Console(ascii_only=bool(args.ascii))
    try:  # a driver that hangs costs the sampler, a child process, and at most 30 s
        snapshot, error = read_snapshot(args, Config(), sampler, required=False), ""
    except GpuwatchError as failed:
        snapshot, error = Snapshot(state=SourceState.SILENT, host=clean(os.uname().nodename)), str(failed)
    machine = Machine(
        is_terminal=console.out.isatty(),
        encoding=console.out.encoding or "",
        size=shutil.get_terminal_size(),
    )
    if args.share:
        console.print(*published_lines(machine, snapshot))
        return 0
    checks = [*check_all(machine, snapshot, error), *check_files(args.config)]
    if args.json:
        console.print_json(msgspec.json.encode(DoctorJson(__version__, snapshot.host, checks)).decode())
    else:
        console.print(*format_checks(checks, color=console.color, width=console.width))
    return int(any(one.mark is CheckMark.FIX for one in checks))


def format_checks(checks: Sequence[Check], *, color: bool, width: int | None = None) -> Iterator[str]:
    """Yield a line for each check, and below it the suggested fix; folded at `width` cells (None: not folded)."""
    longest = max(len(one.name) for one in checks)
    indent = longest + _MARK_WIDTH + 4
    colors = {CheckMark.OK: GREEN, CheckMark.FIX: YELLOW}
    for one in checks:
        head, *rest = fold(one.found, width, indent)
        mark = f"{one.mark:<{_MARK_WIDTH}}"
        if color and one.mark in colors:
            mark = f"\x1b[{colors[one.mark]}m{mark}\x1b[0m"
        yield f"{mark}  {one.name:<{longest}}  {head}"
        yield from (f"{'':<{indent}}{line}" for line in rest)
        if one.fix:
            yield from (f"{'':<{indent}}{line}" for line in fold(f"→ {one.fix}", width, indent))


# ---------------------------------------------------------------------------------------------------------------
# Driver and machine


def check_all(machine: Machine, snapshot: Snapshot, error: str = "") -> Iterator[Check]:
    """Yield the checks of the driver, of the machine and of the terminal."""
    yield _driver(machine, snapshot, error)
    if snapshot.gpus:
        yield _gpus(snapshot)
        yield from _persistence(snapshot)
    yield _devices(machine, snapshot)
    yield _hidepid(machine)
    yield _service(machine, snapshot)
    yield _container(machine, snapshot)
    if machine.is_terminal:
        yield _terminal(machine)
    yield from _clipboard(machine)


def _driver(machine: Machine, snapshot: Snapshot, error: str) -> Check:
    module = loaded_driver(machine.proc)
    versions = f"library {snapshot.driver or 'unknown'}, kernel module {module or 'unknown'}"
    if snapshot.state is not SourceState.OK:
        words, _, step = (error or snapshot.words).partition("; ")
        return Check("driver", CheckMark.FIX, f"{words} ({versions})", step or "look at `nvidia-smi` and `dmesg`")
    if module and snapshot.driver and module != snapshot.driver:
        return Check(
            "driver", CheckMark.FIX, versions, "the driver was upgraded: reboot, or load the new kernel module"
        )
    return Check("driver", CheckMark.OK, f"{versions}, CUDA {snapshot.cuda or 'unknown'}")


def _gpus(snapshot: Snapshot) -> Check:
    sick = [gpu for gpu in snapshot.gpus if gpu.health is not Health.OK]
    answering = f"{len(snapshot.gpus) - len(sick)} of {len(snapshot.gpus)} GPUs answer"
    if sick:
        words = ", ".join(f"GPU {gpu.index} {gpu.health}" for gpu in sick)
        return Check("GPUs", CheckMark.FIX, f"{answering}: {words}", clean(sick[0].words) or "look at `dmesg`")
    notes = [f"GPU {gpu.index}: {gpu.holdings_note}" for gpu in snapshot.gpus if gpu.holdings_note]
    if notes:
        return Check("GPUs", CheckMark.NOTE, f"{answering}; {notes[0]}")
    return Check("GPUs", CheckMark.OK, answering)


def _persistence(snapshot: Snapshot) -> Iterator[Check]:
    """Yield the check of persistence mode: off, each first use wakes a GPU for 1 to 3 s."""
    off = [str(gpu.index) for gpu in snapshot.gpus if gpu.persistence is False]
    if off:
        step = "as root: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"
        found = f"off on GPU {', '.join(off)}: the first program on an idle GPU starts 1 to 3 s later"
        yield Check("persistence mode", CheckMark.NOTE, found, step)
    elif any(gpu.persistence is True for gpu in snapshot.gpus):
        yield Check("persistence mode", CheckMark.OK, "on")


def _devices(machine: Machine, snapshot: Snapshot) -> Check:
    """Check that the device files can be opened; nothing is opened, since that can wake a GPU."""
    folder = machine.root / "dev"
    names = sorted(one.name for one in folder.glob("nvidia*") if re.fullmatch(r"nvidia(\d+|ctl|-uvm)", one.name))
    closed = [name for name in names if not os.access(folder / name, os.R_OK | os.W_OK)]
    if closed:
        step = (
            "ask an administrator to add you to their group (often video), or to set NVreg_DeviceFileMode=0666; "
            "in a batch job, request that GPU"
        )
        return Check(
            "device files", CheckMark.FIX, f"no permission to open {', '.join(f'/dev/{one}' for one in closed)}", step
        )
    if names:
        return Check("device files", CheckMark.OK, f"you may open all {len(names)} in /dev")
    if (folder / "dxg").exists():
        return Check("device files", CheckMark.NOTE, "WSL (/dev/dxg): the driver does not say what each process holds")
    if snapshot.state is SourceState.OK:
        return Check("device files", CheckMark.NOTE, "no /dev/nvidia*: processes that NVML does not list are not found")
    step = "in a container: start it with GPUs (docker run --gpus all); else as root: nvidia-modprobe -u -c 0"
    return Check("device files", CheckMark.FIX, "no /dev/nvidia*", step)


def _hidepid(machine: Machine) -> Check:
    if not hides_pids(machine.proc):
        return Check("hidepid", CheckMark.OK, "/proc shows the processes of all users")
    if machine.uid == 0:
        return Check("hidepid", CheckMark.OK, "/proc hides processes of others, but not from root")
    step = "ask an administrator to add you to the group of the mount's gid= option, or to mount /proc with hidepid=0"
    return Check("hidepid", CheckMark.FIX, "/proc hides the processes of other users: their owners are unknown", step)


def _published(machine: Machine) -> tuple[Status | None, str]:
    """Return what the machine's service publishes, or why that is not used."""
    try:
        return read_service(machine.root / SERVICE.relative_to("/")), ""
    except LiveFileError as error:
        return None, str(error)


def _service(machine: Machine, snapshot: Snapshot) -> Check:
    """Check whether the machine's service publishes the shares of other people's processes."""
    found, why = _published(machine)
    if found is None and not why:
        return Check(
            "service",
            CheckMark.NOTE,
            "not running: of other users' processes, only command lines and readable scripts show declared shares",
            "an administrator can start it for everybody: gpuwatch watch --unit",
        )
    if found is None:
        return Check("service", CheckMark.FIX, f"not used: {why}", "ask an administrator")
    listed = {one.key for one in snapshot.processes}
    count = sum((one.pid, one.start) in listed for one in found.processes)
    words, past = f"publishes the declared shares of {count} of {len(listed)} processes", "and no history"
    days = _days(machine)
    if refused := [why for why in map(refused_day, days) if why]:
        unused = f"{len(refused)} of {len(days)} days of history not used: {refused[0]}"
        return Check("service", CheckMark.FIX, f"{words}; {unused}")
    if days:
        with contextlib.suppress(StoreError, FileNotFoundError), reading(days[0]) as connection:
            of = "everybody's use" if read_about(connection, "publish") == "use" else "values of the GPUs"
            past = f"and {of} since {day_of(days[-1])}"
    return Check("service", CheckMark.OK, f"{words}, {past}")


def _days(machine: Machine) -> list[Path]:
    return public_files(machine.root / DAYS.relative_to("/"))


def published_lines(machine: Machine, snapshot: Snapshot) -> Iterator[str]:
    """Yield what the machine's service publishes of the viewer: processes, their idle times, programs of the past."""
    found, why = _published(machine)
    mine = {one.key for one in snapshot.processes if one.uid == machine.uid}
    lines = [msgspec.json.encode(one) for one in found.processes if (one.pid, one.start) in mine] if found else []
    idle = [msgspec.structs.asdict(one) for one in found.resting if (one.pid, one.start) in mine] if found else []
    lines += map(msgspec.json.encode, idle)
    days = [path for path in _days(machine) if not refused_day(path)]
    programs: set[str] = set()
    for path in days:
        with contextlib.suppress(StoreError, FileNotFoundError), reading(path) as connection:
            rows = connection.execute("SELECT name FROM runs WHERE uid = ?", (machine.uid,)).fetchmany(_MOST_PROGRAMS)
            programs |= {clean(str(name)) for (name,) in rows}
    if programs:
        past = {"uid": machine.uid, "since": str(day_of(days[-1])), "programs": sorted(programs)}
        lines.append(msgspec.json.encode(past))
    yield from (line.decode() for line in lines)
    if not lines:
        yield why or ("no service is running" if found is None else "nothing about you is published")


def _container(machine: Machine, snapshot: Snapshot) -> Check:
    if not in_container(machine.proc, machine.root, machine.environ):
        return Check("container", CheckMark.OK, "gpuwatch does not run in a container")
    able = machine.environ.get("NVIDIA_DRIVER_CAPABILITIES")
    if able and not {"all", "utility"} & {word.strip() for word in able.split(",")}:
        found = f"NVIDIA_DRIVER_CAPABILITIES={clean(able)[:60]} does not include NVML"
        return Check("container", CheckMark.FIX, found, "start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    if machine.environ.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none", ""):
        return Check("container", CheckMark.FIX, "NVIDIA_VISIBLE_DEVICES hides all GPUs", "start it with --gpus all")
    if snapshot.confined:
        found = "it has its own PIDs: processes outside have no owner, and gpuwatch ends no process"
        return Check("container", CheckMark.FIX, found, "start it with --pid=host")
    if snapshot.state is SourceState.OK:
        return Check("container", CheckMark.OK, "gpuwatch runs in a container and sees the processes of the host")
    return Check("container", CheckMark.NOTE, "gpuwatch runs in a container")


# ---------------------------------------------------------------------------------------------------------------
# Terminal


def _terminal(machine: Machine) -> Check:
    columns, lines = machine.size
    term = machine.environ.get("TERM", "")
    facts = f"TERM={clean(term)[:40]}, {clean(machine.encoding)}, {columns}×{lines}"
    if term in ("", "dumb"):
        return Check(
            "terminal", CheckMark.FIX, facts, "the dashboard needs a terminal: set TERM, for example to xterm-256color"
        )
    if "utf" not in machine.encoding.lower():
        return Check("terminal", CheckMark.FIX, facts, "only ASCII is used; for all characters: export LC_ALL=C.UTF-8")
    if columns < MIN_WIDTH or lines < MIN_HEIGHT:
        return Check("terminal", CheckMark.FIX, facts, f"make it at least {MIN_WIDTH}×{MIN_HEIGHT}")
    return Check("terminal", CheckMark.OK, facts)


def _clipboard(machine: Machine) -> Iterator[Check]:
    """Yield the check of the clipboard where gpuwatch runs in tmux, which is asked with a time limit."""
    socket = machine.environ.get("TMUX", "").rpartition(",")[0].rpartition(",")[0]
    if not socket:
        return
    try:
        wanted = "\n".join(f"#{{{name}}}" for name in _TMUX_OPTIONS)
        answer = PaneNames(uid=machine.uid, path=machine.environ.get("PATH", "")).ask(
            Path(socket), "display-message", "-p", wanted
        )
    except OSError as error:
        yield Check("clipboard", CheckMark.NOTE, f"tmux does not answer: {clean(str(error))}")
        return
    lines = [clean(line)[:40] for line in answer.decode("utf-8", "replace").split("\n")]
    clipboard, passthrough, *_ = [*lines, "", ""]
    # Before 3.3 there was no such option, and sequences were passed on. Source: tmux's CHANGES.
    passes = passthrough not in ("0", "off")
    facts = f"set-clipboard {clipboard or 'unknown'}, allow-passthrough {'on' if passes else 'off'}"
    if clipboard == "on" or passes:
        yield Check("clipboard", CheckMark.OK, facts)
    else:
        # With `external`, the default, tmux sets the clipboard only for its own copy mode. Source: tmux(1).
        step = "in ~/.tmux.conf: set -g set-clipboard on (and for desktop notifications: set -g allow-passthrough on)"
        found = f"{facts}: what `y` copies (OSC 52) reaches neither tmux's buffer nor the clipboard"
        yield Check("clipboard", CheckMark.NOTE, found, step)


# ---------------------------------------------------------------------------------------------------------------
# Files


def check_files(config: str | None, store: Path | None = None) -> Iterator[Check]:
    yield _configuration(config)
    yield _store(store or own_store())


def _configuration(config: str | None) -> Check:
    try:
        _, origins = load_traced(config)
    except (GpuwatchError, OSError) as error:
        fix = "fix the file, or run without --config" if config else "fix the file"
        return Check("configuration", CheckMark.FIX, clean(str(error)), fix)
    if closed := find_closed(ADMINISTRATORS):
        return Check("configuration", CheckMark.FIX, f"{ADMINISTRATORS}: {closed}", f"as root, {OPEN}")
    secrets = origins.get("notify.urls")
    if secrets is not None and (seen := find_readable(secrets, ADMINISTRATORS)):
        words, _, fix = seen.partition("; ")
        return Check("configuration", CheckMark.FIX, f"{files.shown_path(secrets)}: {words}", fix)
    applied = [
        f"{files.shown_path(file)} applies to {whom}"
        for file, whom in ((ADMINISTRATORS, "everybody"), (Path(config) if config else own_path(), "you"))
        if file.exists()
    ]
    return Check("configuration", CheckMark.OK, "; ".join(["no mistakes", *applied]))


def _store(path: Path) -> Check:
    shown = clean(str(path))
    try:
        files.check_folder(path.parent)
    except OSError as error:
        step = "make the folder writable, or set XDG_STATE_HOME to a folder that you can write to"
        if error.errno in files.FULL:
            step = "free space on that disk"
        return Check("store", CheckMark.FIX, f"{shown} cannot be written: {files.words(error, None)}", step)
    try:
        if Path(f"{path}-journal").exists():  # to open it now could finish what a killed writer has begun
            return Check("store", CheckMark.OK, f"{shown} is being written")
        with reading(path):
            pass
    except FileNotFoundError:
        return Check("store", CheckMark.OK, f"none yet: `gpuwatch watch` or the dashboard creates {shown}")
    except (StoreError, OSError) as error:
        return Check("store", CheckMark.FIX, clean(str(error)), f"move {shown} away; the next start creates a new one")
    return Check("store", CheckMark.OK, shown)
