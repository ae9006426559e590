"""Unit of the machine's service: what `gpuwatch watch --unit` prints for systemd, and the lines that remove it.

Root's service runs every module that its interpreter finds, so no unit is printed if others than root could change one.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpuwatch.base.errors import UsageError
from gpuwatch.base.extras import install_hint
from gpuwatch.base.files import check_source
from gpuwatch.base.text import clean
from gpuwatch.base.units import long_duration, size
from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import EXPORT_FLAGS
from gpuwatch.config.keys import is_loopback
from gpuwatch.config.paths import ADMINISTRATORS
from gpuwatch.config.reading import merge, read_administrators
from gpuwatch.config.types import Config
from gpuwatch.recorder.schema import DAYS
from gpuwatch.recorder.store import EVENTS_BYTES
from gpuwatch.sampler.reservations import SHARED

UNIT: Final = Path("/etc/systemd/system/gpuwatch.service")
AGAIN: Final = (
    f"gpuwatch watch --unit >gpuwatch.service && install -m 644 gpuwatch.service {UNIT} && systemctl daemon-reload && "
    "systemctl restart gpuwatch"
)
"""Lines that print and use the unit again."""

_UNIT: Final = """\
# {unit}
# The service of `gpuwatch watch --unit`, for everybody on this machine. As root:
#   gpuwatch watch --unit{flags} >gpuwatch.service && install -m 644 gpuwatch.service {unit}
#   systemctl daemon-reload && systemctl enable --now gpuwatch
# It reads only {settings}. `systemd-analyze security` gives {score}.
[Unit]
Description=gpuwatch: who uses the GPUs of this machine, for everybody on it
After=nvidia-persistenced.service

[Service]
# Reservations of `gpuwatch run` are for everybody; on some systems users may make no folder in /run/lock.
ExecStartPre=-+/bin/mkdir -p -m 1777 {reservations}
ExecStart={program} -I -m gpuwatch watch --service
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=10
RestartPreventExitStatus=2
TimeoutStopSec=5
UMask=0077
StateDirectory=gpuwatch
RuntimeDirectory=gpuwatch
# It reads everybody's processes, and their scripts with the rights of their owners; it writes in its two folders, and
# removes the reservations of runs that have ended.
ReadWritePaths=-{reservations}
CapabilityBoundingSet=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_SETUID CAP_SETGID
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateMounts=yes
# NVML: 195 is the major number of all GPUs, whether their driver is loaded now or later; MIG has its own device files.
DevicePolicy=closed
DeviceAllow=char-195 rw
DeviceAllow=char-nvidia-caps r
PrivateNetwork=yes
IPAddressDeny=any
RestrictAddressFamilies=AF_UNIX
LockPersonality=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""
SCORE: Final = "2.1"
"""Exposure of the unit, by systemd 252."""

_NETWORK: Final = """
# {unit}.d/network.conf, or the end of the file above
# [notify] in {settings} sends messages, so this allows the network. `systemd-analyze security` gives {score} with it.
# A command of [notify] runs within the same bounds: it can write no file.
[Service]
PrivateNetwork=no
IPAddressDeny=
RestrictAddressFamilies=AF_INET AF_INET6
"""
NETWORK_SCORE: Final = "3.0"
"""Exposure of the unit with the network."""

_EXPORT: Final = """
# {unit}.d/export.conf, or the end of the file above
# --export serves metrics, so this allows {allows}. `systemd-analyze security` gives {score} with it.
[Service]
ExecStart=
ExecStart={program} -I -m gpuwatch watch --service --export
"""
_PORT: Final = """\
PrivateNetwork=no
RestrictAddressFamilies=AF_INET AF_INET6
"""
_LOOPBACK: Final = "IPAddressAllow=localhost\n"
EXPORT_SCORE: Final = "2.9"
"""Exposure of the unit with only the loopback."""

_REMOVE: Final = """\
systemctl disable --now gpuwatch
rm -rf {unit} {unit}.d {reservations}
systemctl daemon-reload
# systemd removes /run/gpuwatch with the service. {state} stays until you delete it: events and use of the
# last {days}, {size} at most ([report] in {settings}).
# rm -rf {state}
# rm -rf {settings.parent}  # its configuration
# rm -rf /opt/gpuwatch /usr/local/bin/gpuwatch  # the program, if it was installed for the service
"""

_INSTALL: Final = """\
  sudo python3 -m venv /opt/gpuwatch
  sudo /opt/gpuwatch/bin/pip install .    # in a clone of gpuwatch
  /opt/gpuwatch/bin/gpuwatch watch --unit
"""
_OTHERS: Final = ("config", "json", "demo", "quiet", "time", "interval", "gpu", "record")
_PLAIN: Final = r"[A-Za-z0-9/._+-]+"
"""Path of a program that means the same to systemd, without quotes."""
STICKY: Final = stat.S_ISVTX
"""Mode of a folder such as /tmp: everybody may write in it, and it is emptied now and then."""
_MISSING: Final = "missing.py"
_LOOK: Final = "import gpuwatch, sys; print(gpuwatch.__file__, *sys.path, sep='\\n')"


def print_unit(args: argparse.Namespace, *, program: Path | None = None, settings: Path = ADMINISTRATORS) -> int:
    """Print the unit, or the lines that remove it, and return the exit code; raises UsageError.

    `program` is the interpreter of the service (default: this one), `settings` the administrator's configuration.
    """
    if not args.unit:
        raise UsageError("--remove needs --unit; `gpuwatch watch --unit --remove` prints how to remove the service")
    if given := [name for name in _OTHERS if getattr(args, name, None)]:
        raise UsageError(f"--unit cannot be used with --{'for' if given[0] == 'time' else given[0]}")
    if given := [name for name in EXPORT_FLAGS if getattr(args, name, None) is not None]:
        flag = given[0].replace("_", "-")
        raise UsageError(f"--unit cannot be used with --{flag}: write {given[0]} into [export] of {settings}")
    console, program = Console(ascii_only=bool(args.ascii)), program or Path(sys.executable)
    if os.path.lexists(settings) and not os.access(settings, os.R_OK):
        raise UsageError(f"--unit: {settings} cannot be read, but it decides what the service may do; run this as root")
    config = merge(read_administrators(settings))
    if args.remove:
        days, most = long_duration(config.report.keep), size(config.report.largest + EVENTS_BYTES)
        words = _REMOVE.format(unit=UNIT, state=DAYS, settings=settings, reservations=SHARED, days=days, size=most)
        console.print(*words.splitlines())
        return 0
    if trouble := find_writable(program):
        console.warn(f"--unit: {trouble}; no unit is printed. Install it where only root can write:")
        console.err.write(_INSTALL)
        return UsageError.exit_code
    unit = _UNIT.format(
        unit=UNIT, flags=" --export" * args.export, settings=settings, program=program, score=SCORE, reservations=SHARED
    )
    if config.notify.sends:
        unit += _NETWORK.format(unit=UNIT, settings=settings, score=NETWORK_SCORE)
    if args.export:
        unit += _export_part(config, program)
    console.print(*unit.splitlines())
    return 0


def _export_part(config: Config, program: Path) -> str:
    """Return the drop-in for the metrics: it allows a folder, the loopback, or the network; raises UsageError."""
    settings, words = config.export, {"unit": UNIT, "program": program}
    if settings.textfile:
        if not re.fullmatch(f"/{_PLAIN}", settings.textfile):
            raise UsageError(
                f"--unit: export.textfile is {settings.textfile!a}; write a path of letters, digits and /._+-"
            )
        return _EXPORT.format(**words, allows="its folder", score=SCORE) + f"ReadWritePaths={settings.textfile}\n"
    try:
        from gpuwatch.export.exporter import parse_address
    except ImportError as error:
        raise UsageError(
            f"--unit --export: {program} has no {clean(str(error.name))}: {install_hint('export')}"
        ) from None
    if config.notify.sends or not is_loopback(parse_address(settings.listen)[0]):
        open_ = "" if config.notify.sends else f"{_PORT}IPAddressDeny=\n"
        return _EXPORT.format(**words, allows="the network", score=NETWORK_SCORE) + open_
    return _EXPORT.format(**words, allows="the loopback", score=EXPORT_SCORE) + _PORT + _LOOPBACK


def find_writable(program: Path) -> str:
    """Return why others than root could change what an interpreter runs, in one line; empty if only root could."""
    named = clean(str(program))
    if not re.fullmatch(_PLAIN, str(program)):
        return f"the path {named} has characters that a unit cannot have"
    for folder in (*program.parents, *program.resolve().parents):
        if folder.stat().st_mode & STICKY:
            return f"{named} lies below {clean(str(folder))}, where anybody can put another one once it is deleted"
    if trouble := _find_trouble([program, program.parent.parent / "pyvenv.cfg"]):
        return trouble  # before it is run
    try:
        done = subprocess.run([program, "-I", "-c", _LOOK], cwd="/", capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{named} cannot be started ({error.strerror})"
    if done.returncode:
        return f"{named} finds gpuwatch only by PYTHONPATH or in your home folder"
    package, *folders = map(Path, done.stdout.splitlines())
    return _find_trouble(_suspects([package.parent, *folders]))


def _suspects(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield a path in each folder, by which the folders above are checked, and all below that is a link or not root's.

    To check each of an interpreter's 20,000 files, with all folders above it, takes 6 s.
    """
    for top in folders:
        yield top / _MISSING
        for folder, inside, names in os.walk(top):
            for path in (Path(folder, name) for name in (*inside, *names)):
                try:
                    state = path.lstat()
                except FileNotFoundError:  # a compiled module that is being replaced
                    continue
                if state.st_uid or stat.S_ISLNK(state.st_mode) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    yield path / _MISSING if os.path.isdir(path) else path  # noqa: PTH112 - a link may lead where none may look


def _find_trouble(paths: Iterable[Path]) -> str:
    return next(filter(None, (check_source(path, 0, missing_ok=True) for path in paths)), "")
