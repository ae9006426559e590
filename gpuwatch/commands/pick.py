"""`gpuwatch pick`: GPUs with room, printed for CUDA_VISIBLE_DEVICES, or hosts with room."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpuwatch.base import psinfo
from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.base.units import gib, parse_percent, parse_share, parse_size
from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import add_flags, parse_indices, parse_number, parse_value
from gpuwatch.commands.startup import configured, read_snapshot
from gpuwatch.declared.facts import CVD, gpu_facts
from gpuwatch.declared.visible_devices import ORDER, PCI_BUS_ID, SLURM, order_certainty, parse
from gpuwatch.launch.placement import LEAST, Offer, Request, choose, find_offers, way_out
from gpuwatch.model.shares import Reservation
from gpuwatch.model.snapshot import Gpu, Order, Snapshot, known
from gpuwatch.sampler.owners import UserNames
from gpuwatch.sampler.reservations import SHARED, read_reservations, reservation_folders
from gpuwatch.sources.sampler_process import SamplerProcess

PATIENCE = 1.0
"""Seconds to wait for users' names; a user without a name is shown by uid."""

_MOST = 1024
_SHOWN = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "demo", "gpu")
    add_choice(parser)
    parser.add_argument("--index", action="store_true", help="print NVML indices instead of UUIDs")
    parser.add_argument("--fleet", action="store_true", help="print hosts that have enough such GPUs, best first")
    parser.add_argument(
        "--prometheus", metavar="URL", help="with --fleet: the Prometheus server (default: that of [fleet])"
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `gpuwatch run` has too."""
    parser.add_argument("--share", metavar="F", help="share of each GPU: 0.4 or 40%%")
    parser.add_argument("--memory", metavar="SIZE", help="memory of each GPU: 20GiB")
    parser.add_argument("-n", dest="count", metavar="N", help="how many GPUs (default 1)")
    parser.add_argument(
        "--empty", action="store_true", help="only GPUs that nobody uses; without a size: all their memory"
    )
    parser.add_argument("--max-util", metavar="P", help="no GPU with more than P percent utilization")
    parser.add_argument(
        "--ignore-reservations", action="store_true", help="ignore the reservations of others, and print their owners"
    )


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print GPUs with room and return the exit code: 1 if there are not enough.

    Without a size these are empty GPUs, or else those with the most memory left; stderr names them. The command reads
    the reservations of others, and neither locks nor reserves a GPU.
    """
    bare = args.share is None and args.memory is None and not (args.empty or args.fleet)
    args.empty = args.empty or bare
    wanted, number = parse_request(args), parse_count(args.count)
    if args.fleet:
        from gpuwatch.commands import fleet  # with its client

        return fleet.pick(args, wanted, number)
    if args.prometheus:
        raise UsageError("--prometheus needs --fleet")
    config, only = configured(args), parse_indices(args.gpu)
    snapshot = read_snapshot(args, config, sampler)
    check_gpus_exist(only, snapshot)
    unwanted = {} if snapshot.demo else find_hidden(snapshot, os.environ)
    named = [gpu for gpu in snapshot.gpus if gpu.index in only]
    if all(gpu.key in unwanted for gpu in named):
        check_not_hidden(named, unwanted)
    unwanted |= {gpu.key: "not among --gpu" for gpu in snapshot.gpus if only and gpu.index not in only}
    reserved: list[Reservation] = []
    console = Console(ascii_only=config.ascii)
    if not snapshot.demo:
        folders = reservation_folders(args.reservations or SHARED)
        found = read_reservations(folders, holding_pids(snapshot), caller=os.getpid(), sweep=True, warn=console.warn)
        reserved = add_user_names(found, snapshot)
        console.warn(*slurm_notes(snapshot, os.environ))

    def find(request: Request) -> list[Offer]:
        return find_offers(snapshot, request, reserved, hidden=unwanted, ignore=args.ignore_reservations)

    offers = find(wanted)
    if bare and len(choose(offers, number)) < number:
        wanted = Request(memory=LEAST, busy=wanted.busy)
        offers = find(wanted)
    chosen = choose(offers, number)
    enough = len(chosen) == number
    value = ",".join(str(offer.gpu.index) if args.index else offer.gpu.uuid for offer in chosen) if enough else None
    if args.json:
        shown = PickJson(value, [_pick_gpu(offer, value is not None and offer in chosen) for offer in offers])
        console.print_json(msgspec.json.encode(shown).decode())
    elif value is not None:
        console.print(value)
    console.warn(*ignored_lines(offers, unwanted))
    if bare and enough:
        console.warn(*(f"GPU {one.gpu.index}{' is empty' * wanted.empty}: {one.summary}" for one in chosen))
    elif not enough:
        less = find(Request(memory=LEAST, busy=wanted.busy))
        console.warn(*reason_lines(offers, wanted, number, way_out(less, number)))
    facts = tuple(map(gpu_facts, snapshot.gpus))
    if enough and args.index and order_certainty(facts, os.environ.get(ORDER)) is Order.HEURISTIC:
        console.warn(f"these are NVML indices: set {ORDER}={PCI_BUS_ID}, so that CUDA counts the same way")
    return 0 if enough else 1


def parse_request(args: argparse.Namespace) -> Request:
    """Parse --share, --memory, --empty and --max-util; raises UsageError."""
    share, memory = args.share, args.memory
    if share is not None and memory is not None:
        raise UsageError("write --share or --memory, not both")
    if share is None and memory is None and not args.empty:
        raise UsageError("write --share, --memory or --empty")
    return Request(
        share=parse_value("--share", parse_share, share),
        memory=parse_value("--memory", parse_size, memory),
        busy=parse_value("--max-util", parse_percent, args.max_util),
        empty=args.empty,
    )


def parse_count(text: str | None) -> int:
    """Parse -n; raises UsageError."""
    return 1 if text is None else parse_number("-n", text, _MOST, "a number of GPUs; write 1 or more")


def check_gpus_exist(wanted: Iterable[int], snapshot: Snapshot) -> None:
    """Raise UsageError for a GPU that this machine does not have."""
    there = [gpu.index for gpu in snapshot.gpus]
    unknown = set(wanted).difference(there)
    if unknown:
        raise UsageError(f"--gpu: there is no GPU {min(unknown)}; this machine has {', '.join(map(str, there))}")


def check_not_hidden(named: Iterable[Gpu], hidden: Mapping[str, str]) -> None:
    """Raise UsageError for a named GPU that the caller's environment hides; `hidden` is that of `find_hidden`."""
    for gpu in named:
        if gpu.key in hidden:
            raise UsageError(f"--gpu: GPU {gpu.index} is {hidden[gpu.key]}; name a visible one, or unset {CVD}")


def find_hidden(snapshot: Snapshot, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the GPUs (key → reason) that CUDA_VISIBLE_DEVICES hides in the caller's environment."""
    value = environ.get(CVD)
    if value is None:
        return {}
    seen = set(parse(value, tuple(map(gpu_facts, snapshot.gpus)), environ.get(ORDER), driver=snapshot.driver).gpus)
    why = f"hidden by {CVD}={clean(value, _SHOWN)} in your environment"
    return {gpu.key: why for gpu in snapshot.gpus if not seen & {gpu.key, *(one.uuid for one in gpu.instances)}}


def holding_pids(snapshot: Snapshot) -> frozenset[int]:
    return frozenset(holding.pid for gpu in snapshot.gpus for holding in gpu.holdings)


def add_user_names(reserved: Sequence[Reservation], snapshot: Snapshot) -> list[Reservation]:
    names = {process.uid: process.user for process in snapshot.processes}
    others = find_user_names({one.uid for one in reserved if not names.get(one.uid)})
    return [one._replace(user=names.get(one.uid) or others.get(one.uid, "")) for one in reserved]


def find_user_names(uids: Collection[int]) -> dict[int, str]:
    """Return the names of users by uid, of those that have one; waits for `PATIENCE`."""
    users = UserNames()
    for uid in uids:
        users.name(uid)
    users.wait(PATIENCE)
    return {uid: name for uid in uids if (name := users.name(uid)) != str(uid)}


def ignored_lines(offers: Iterable[Offer], unwanted: Mapping[str, str]) -> list[str]:
    """Return a line for each reservation that was ignored."""
    return [
        f"ignored: {promise.user} has reserved {gib(promise.bytes)} GiB of GPU {offer.gpu.index}, not used yet"
        for offer in offers
        for promise in offer.ignored
        if offer.gpu.key not in unwanted
    ]


def shortage(offers: Iterable[Offer], request: Request, wanted: int) -> str:
    """Return how many GPUs are wanted and fit: `no GPU is empty`."""
    fit = sum(not offer.why for offer in offers)
    if request.empty and not fit:
        return "no GPU is empty"
    one, many = ("is empty", "are empty") if request.empty else ("has room", "have room")
    found = f"only {fit} {one if fit == 1 else many}" if fit else f"none {one}"
    return f"{wanted} {'GPU' if wanted == 1 else 'GPUs'} wanted, but {found}"


def reason_lines(offers: Sequence[Offer], request: Request, wanted: int, *ways: str) -> list[str]:
    """Return the shortage with ways out of it, and a line for each GPU: why it was not chosen, or that it fits."""
    lines = ["; ".join(filter(None, (shortage(offers, request, wanted), *ways)))]
    return lines + [f"GPU {offer.gpu.index}: {offer.why or offer.summary}" for offer in offers]


def slurm_notes(snapshot: Snapshot, environ: Mapping[str, str]) -> list[str]:
    """Return a line where Slurm manages the machine and the caller has no GPUs of it: its allocations are not known."""
    if any(environ.get(name) for name in SLURM):
        return []
    jobs = (one.context is not None and bool(one.context.slurm) for one in snapshot.processes)
    if not (any(name.startswith("SLURM_") for name in environ) or any(jobs) or psinfo.is_running("slurmd")):
        return []
    return ["Slurm manages this machine, and gpuwatch does not know its allocations: ask Slurm for a GPU (srun)"]


class PickGpu(msgspec.Struct, frozen=True):
    """GPU in the JSON of `pick`."""

    index: int
    uuid: str
    free: int | None
    """Bytes that a process can still get."""
    promised: int
    """Bytes that are declared or reserved, and not used yet."""
    left: int | None
    """Free bytes, minus what is promised."""
    wanted: int | None
    """Bytes that were asked for on this GPU; None if they cannot be computed."""
    chosen: bool
    why: str
    """Why it was not chosen; empty if it has room."""


class PickJson(msgspec.Struct, frozen=True):
    """JSON of `pick`."""

    cuda_visible_devices: str | None
    """Value for CUDA_VISIBLE_DEVICES; None if there is no room."""
    gpus: Sequence[PickGpu]
    """All GPUs that were considered, the best first."""


def _pick_gpu(offer: Offer, chosen: bool) -> PickGpu:
    gpu = offer.gpu
    free, left = (offer.free, offer.left) if known(gpu.memory.free) else (None, None)
    return PickGpu(gpu.index, gpu.uuid, free, offer.promised, left, offer.wanted or None, chosen, offer.why)
