"""`gpuwatch run --share 0.4 -- COMMAND…`: chooses and reserves GPUs, sets every framework's variables."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NoReturn

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.base.errors import GpuwatchError, UsageError
from gpuwatch.base.text import clean
from gpuwatch.base.units import gib, ranges
from gpuwatch.commands import pick
from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import add_flags, parse_list
from gpuwatch.commands.startup import PATIENCE, check_snapshot, configured, open_source, read_snapshot
from gpuwatch.config.types import Config
from gpuwatch.declared.facts import Facts, Share, gpu_facts
from gpuwatch.declared.resolver import agreed_candidates
from gpuwatch.inspector.runs import format_run_name
from gpuwatch.launch.environment import Allocation, VariableChange, changes, torch_obstacle
from gpuwatch.launch.placement import LEAST, Offer, Request, choose, find_offers, way_out
from gpuwatch.model.shares import Reservation, is_pending, limit_usages, usable
from gpuwatch.model.snapshot import Basis, Snapshot, SourceState
from gpuwatch.sampler.reservations import SHARED, locked_folder, read_reservations, reservation_folders, reserve
from gpuwatch.sources.sampler_process import SamplerProcess

_LOOK = 2.0
"""Seconds between two samples while it waits."""
_NAMED = 6
"""Users who are named while it waits, at most."""


class NotStartedError(GpuwatchError):
    """Error of a command that cannot be started, with the exit code that shells have for it."""

    def __init__(self, program: str, number: int) -> None:
        missing = number == errno.ENOENT
        super().__init__(f"{clean(program, 200)}: {'not found' if missing else os.strerror(number)}")
        self.exit_code = 127 if missing else 126


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments; the program after `--` was removed before, and without `--` it is `program`."""
    add_flags(parser)
    pick.add_choice(parser)
    parser.add_argument(
        "--gpu",
        metavar="0,2",
        default=argparse.SUPPRESS,
        help="these GPUs (default: auto, those with the most memory left)",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        default=argparse.SUPPRESS,
        help="wait until enough GPUs have room, and print who holds them",
    )
    said = parser.add_mutually_exclusive_group()
    said.add_argument("--verbose", action="store_true", help="print each environment variable that is set")
    said.add_argument("--quiet", action="store_true", help="do not print which GPUs were chosen")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Reserve GPUs and become the command; returns 1 if there is no room, raises NotStartedError."""
    config = configured(args)
    wanted = pick.parse_request(args)
    named = () if args.gpu in (None, "auto") else parse_list(args.gpu, "auto, 3 or 0,2")
    if named and args.count is not None:
        raise UsageError("--gpu and -n cannot be used together: the list gives the number")
    number = pick.parse_count(args.count)
    command = args.program
    if not command or not command[0]:
        raise UsageError(
            "run: COMMAND is missing; write it after the flags: gpuwatch run --share 0.4 -- python train.py"
        )
    path = os.environ.get("PATH", os.defpath)
    if shutil.which(command[0], path=path) is None:  # before GPUs are reserved
        exists = shutil.which(command[0], mode=os.F_OK, path=path)
        raise NotStartedError(command[0], errno.EACCES if exists else errno.ENOENT)
    console, folders = Console(ascii_only=config.ascii), reservation_folders(args.reservations or SHARED)
    number = len(named) or number
    warnings: list[str] = []

    def find(reserved: Sequence[Reservation], request: Request = wanted) -> list[Offer]:
        offers = find_offers(snapshot, request, reserved, hidden=unwanted, ignore=args.ignore_reservations)
        return [offer for offer in offers if not named or offer.gpu.index in named]

    said = ""
    with contextlib.closing(_snapshots(args, config, sampler)) as snapshots:
        for snapshot in snapshots:
            pick.check_gpus_exist(named, snapshot)
            unwanted = pick.find_hidden(snapshot, os.environ)
            pick.check_not_hidden([gpu for gpu in snapshot.gpus if gpu.index in named], unwanted)
            warnings.clear()
            with locked_folder(folders, warnings.append) as folder:
                reserved = read_reservations(
                    folders, pick.holding_pids(snapshot), caller=os.getpid(), sweep=True, warn=warnings.append
                )
                asked = find(reserved)
                fit = {offer.gpu.index: offer for offer in asked if not offer.why}
                chosen = [fit[index] for index in named if index in fit] if named else choose(asked, number)
                wants = {offer.gpu.uuid: offer.wanted for offer in chosen}
                mine = len(chosen) == number and folder is not None and reserve(folder, wants, warnings.append)
            if args.ignore_reservations or len(chosen) < number:  # with names, which are not waited for under the lock
                reserved = pick.add_user_names(reserved, snapshot)
                asked = find(reserved)
            if len(chosen) == number or (not said and sum(not offer.hopeless for offer in asked) < number):
                break
            words = _waiting_words(asked, pick.shortage(asked, wanted, number))
            if args.wait and words != said:
                console.warn(words)
                said = words
    console.warn(*warnings, *pick.slurm_notes(snapshot, os.environ), *pick.ignored_lines(asked, unwanted))
    if len(chosen) < number:
        ways = [way_out(find(reserved, Request(memory=LEAST, busy=wanted.busy)), number)]
        ways += ["`--wait` waits"] * (not args.wait and sum(not offer.hopeless for offer in asked) >= number)
        console.warn(*pick.reason_lines(asked, wanted, number, *ways))
        return 1
    allocation = Allocation(
        gpus=[offer.gpu.uuid for offer in chosen],
        amounts=[offer.wanted for offer in chosen],
        wholes=[usable(offer.gpu) or offer.wanted for offer in chosen],
        share=wanted.share,
    )
    if said and config.notify.runs:
        console.warn(*_send_start(config, format_run_name(tuple(command)) or command[0], chosen))
    variables = list(changes(allocation, os.environ, torch=torch_obstacle(command, os.environ)))
    console.warn(*_agreement_warnings(command, config.shares, chosen, snapshot))
    if not args.quiet:
        for place, offer in enumerate(chosen):
            amount = f"{gib(offer.wanted)} GiB {'reserved ' * mine}for you"
            console.warn(f"GPU {offer.gpu.index}: {offer.summary}, {amount}, cuda:{place}")
    if args.verbose:
        console.warn(*_change_lines(variables, allocation))
    new = {**os.environ, **{one.name: one.value for one in variables if one.value is not None}}
    return _start(command, new)


def _snapshots(
    args: argparse.Namespace, config: Config, sampler: SamplerProcess | None
) -> Generator[Snapshot, None, None]:
    """Yield a snapshot, with `--wait` one after the other; raises UnavailableError."""
    yield read_snapshot(args, config, sampler)
    if args.wait:
        with contextlib.closing(open_source(args, config, None, interval=_LOOK)) as source:
            while True:
                snapshot = source.next(PATIENCE) or Snapshot(state=SourceState.STARTING)
                if snapshot.state is SourceState.ENDED:
                    check_snapshot(snapshot)
                is_read = args.empty or not any(is_pending(one.declared) for one in snapshot.processes)
                if is_read and snapshot.state is SourceState.OK:
                    yield snapshot


def _send_start(config: Config, name: str, chosen: Sequence[Offer]) -> list[str]:
    """Send the message that the waiting run starts now; return the reasons if it could not be sent."""
    from gpuwatch.recorder.messages import make_routes, raised  # only with `runs` in [notify]

    title, now = f"run {clean(name)} starts on GPU {ranges(offer.gpu.index for offer in chosen)}", time.time()
    host, note = os.uname().nodename, Severity.NOTE
    alert = Alert(rule="run started", host=host, severity=note, title=title, raised=now, ended=now)
    routes = make_routes(config.notify)
    for route in routes:
        route.deliver([raised(alert)], together=1, is_stopped=lambda: False)
    return [route.trouble for route in routes if route.trouble]


def _waiting_words(asked: Sequence[Offer], shortage: str) -> str:
    """Return for which users it waits: `no GPU is empty; waiting for ada (GPU 0,2), ben (GPU 1)`."""
    held: defaultdict[str, list[int]] = defaultdict(list)
    for offer in asked:
        for holder in (offer.holders or ["unknown processes"]) if offer.why and not offer.hopeless else ():
            held[holder].append(offer.gpu.index)
    most = sorted(held, key=lambda name: (-len(held[name]), name))
    names = [f"{name} (GPU {ranges(held[name])})" for name in most[:_NAMED]]
    names += [f"{len(most) - _NAMED} more"] * (len(most) > _NAMED)
    return f"{shortage}; waiting for {', '.join(names)}"


def _agreement_warnings(
    command: Sequence[str], shares: tuple[Share, ...], chosen: Sequence[Offer], snapshot: Snapshot
) -> Iterator[str]:
    """Return warnings if the command, with the user's other processes, takes more than was agreed on."""
    if not shares:
        return
    uid = os.geteuid()
    user = pick.find_user_names({uid}).get(uid, "")  # without the name only tables that give the uid are about them
    facts = Facts(pid=os.getpid(), uid=uid, user=user, argv=tuple(command), shares=shares)
    holding = {(one.gpu, one.scope): one.held for one in limit_usages(snapshot)}
    least = {
        (candidate.device, candidate.scope): candidate
        for candidate in agreed_candidates(facts, tuple(map(gpu_facts, snapshot.gpus)))
    }  # the least comes last
    for offer in chosen:
        for (uuid, scope), candidate in least.items():
            whole, value = usable(offer.gpu), candidate.value or 0.0
            allowed = value if candidate.basis is Basis.BYTES else value * (whole or 0)
            before = holding.get((offer.gpu.uuid, scope), 0)
            if uuid == offer.gpu.key and before + offer.wanted > allowed:
                also = f", {gib(before)} held" if before else ""
                yield (
                    f"more than was agreed on: GPU {offer.gpu.index}: {gib(offer.wanted)} GiB wanted{also}; "
                    f"{gib(allowed)} GiB allowed: {candidate.text}, {candidate.where}"
                )


def _change_lines(variables: Sequence[VariableChange], allocation: Allocation) -> list[str]:
    """Return a line for each variable that was set or left."""
    lines = []
    for one in variables:
        head = f"{one.name} stays as it is" if one.value is None else f"{one.name}={clean(one.value)}"
        lines.append(f"{head}   ({one.note})" if one.note else head)
    if allocation.share is None and len(set(allocation.wholes)) > 1:
        lines.append(
            f"these GPUs differ in size: {allocation.fraction:g} is the size asked for on the largest, and less on the "
            "others"
        )
    return lines


def _start(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores both, and a program would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), dict(environ))
    except OSError as error:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        raise NotStartedError(command[0], error.errno or 0) from None
