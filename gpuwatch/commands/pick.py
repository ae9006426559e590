"""`gpuwatch pick`: GPUs with room, printed for CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuwatch.commands.answer import Answer, Ask, cards
from gpuwatch.declared.visible_devices import CVD, ORDER, PCI_BUS_ID, order_certainty, parse
from gpuwatch.errors import UsageError
from gpuwatch.launch.placement import Room, Wish, choose, rooms
from gpuwatch.model import Order, Snapshot
from gpuwatch.sampler.owners import UserNames
from gpuwatch.sampler.reservations import Found, Place, peek
from gpuwatch.shares import Reserved
from gpuwatch.text import clean
from gpuwatch.units import gib, parse_percent, parse_share, parse_size

PATIENCE = 1.0
"""Seconds that users' names are waited for; without its name a user is known by the uid."""

_MOST = 1024
_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for."""

    wish: Wish
    count: int = 1
    only: tuple[int, ...] = ()
    """Indices of GPUs; empty for all."""
    ignore: bool = False
    """Whether what others reserved does not count."""
    index: bool = False
    as_json: bool = False


def wish(share: str | None, memory: str | None, busy: str | None = None) -> Wish:
    """Understand how much is wanted; raises UsageError, which names the flag."""
    if (share is None) == (memory is None):
        found = "both are given" if share is not None else "neither is given"
        raise UsageError(f"--share or --memory, one of them, says how much is wanted; {found}")
    try:
        flag = "--share"
        fraction = None if share is None else parse_share(share)
        flag = "--memory"
        size = None if memory is None else parse_size(memory)
        flag = "--max-util"
        percent = None if busy is None else parse_percent(busy)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
    return Wish(share=fraction, memory=size, busy=percent)


def count(text: str | None) -> int:
    """Understand how many GPUs are wanted; raises UsageError."""
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= _MOST):
        raise UsageError(f"-n: {text[:40]!a} is no number of GPUs; write 1 or more")
    return int(text)


def prepare(request: Request, environ: Mapping[str, str], folders: Sequence[Place]) -> Ask:
    """Give the command, which only reads what others reserved: it locks nothing and reserves nothing."""
    return functools.partial(_pick, request, environ, folders)


def _pick(request: Request, environ: Mapping[str, str], folders: Sequence[Place], snapshot: Snapshot) -> Answer:
    check_there("--only", request.only, snapshot)
    unwanted = {} if snapshot.demo else hidden(snapshot, environ)
    for gpu in snapshot.gpus:
        if request.only and gpu.index not in request.only:
            unwanted[gpu.key] = "not among --only"
    found = Found([], []) if snapshot.demo else peek(folders, holders(snapshot), caller=os.getpid())
    offers = rooms(snapshot, request.wish, named(found.reserved, snapshot), hidden=unwanted, ignore=request.ignore)
    chosen = choose(offers, request.count)
    enough = len(chosen) == request.count
    value = ",".join(str(room.gpu.index) if request.index else room.gpu.uuid for room in chosen) if enough else None
    words = [*found.words, *ignored_lines(offers, unwanted), *([] if enough else reasons(offers, request.count))]
    if enough and request.index and order_certainty(cards(snapshot), environ.get(ORDER)) is Order.HEURISTIC:
        words.append(f"these are indices of NVML: for CUDA to count alike, set {ORDER}={PCI_BUS_ID}")
    if request.as_json:
        return Answer([msgspec.json.encode(_json(value, offers, chosen)).decode()], words, 0 if enough else 1)
    return Answer([] if value is None else [value], words, 0 if enough else 1)


def check_there(flag: str, wanted: Iterable[int], snapshot: Snapshot) -> None:
    """Raise UsageError where a GPU was named that this machine does not have."""
    there = [gpu.index for gpu in snapshot.gpus]
    unknown = set(wanted).difference(there)
    if unknown:
        raise UsageError(f"{flag}: there is no GPU {min(unknown)}; this machine has {', '.join(map(str, there))}")


def hidden(snapshot: Snapshot, environ: Mapping[str, str]) -> dict[str, str]:
    """Give the GPUs that the caller's own environment hides, and so a scheduler did not give: key and why."""
    value = environ.get(CVD)
    if value is None:
        return {}
    seen = set(parse(value, cards(snapshot), environ.get(ORDER), driver=snapshot.driver).gpus)
    why = f"hidden by {CVD}={clean(value, _SHOWN)} in your environment"
    return {gpu.key: why for gpu in snapshot.gpus if not seen & {gpu.key, *(one.uuid for one in gpu.instances)}}


def holders(snapshot: Snapshot) -> frozenset[int]:
    """Give the PIDs that hold a GPU."""
    return frozenset(holding.pid for gpu in snapshot.gpus for holding in gpu.holdings)


def named(reserved: Sequence[Reserved], snapshot: Snapshot) -> list[Reserved]:
    """Add to reservations the names of their users; the snapshot knows those of holders, others are looked up."""
    names = {process.uid: process.user for process in snapshot.processes}
    unknown = {one.uid for one in reserved if not names.get(one.uid)}
    if unknown:
        users = UserNames()
        for uid in unknown:
            users.name(uid)
        users.settle(PATIENCE)
        names |= {uid: name for uid in unknown if (name := users.name(uid)) != str(uid)}
    return [one._replace(user=names.get(one.uid, "")) for one in reserved]


def ignored_lines(offers: Iterable[Room], unwanted: Mapping[str, str]) -> list[str]:
    """Say of each GPU that may be taken whose reservations were not counted."""
    return [
        f"ignored: {promise.user} has reserved {gib(promise.bytes)} GiB of GPU {room.gpu.index} and not taken them yet"
        for room in offers
        for promise in room.ignored
        if room.gpu.key not in unwanted
    ]


def reasons(offers: Iterable[Room], wanted: int) -> list[str]:
    """Say of each GPU why it cannot be had, or that it could."""
    offers = list(offers)
    fit = sum(not room.why for room in offers)
    lines = [f"{wanted} {'GPU' if wanted == 1 else 'GPUs'} wanted, {fit or 'none'} with room"]
    return lines + [f"GPU {room.gpu.index}: {room.why or room.words}" for room in offers]


def _json(value: str | None, offers: Sequence[Room], chosen: Sequence[Room]) -> dict[str, object]:
    gpus = [
        {
            "index": room.gpu.index,
            "uuid": room.gpu.uuid,
            "free": room.free,
            "promised": room.promised,
            "left": room.left,
            "wanted": room.wanted,
            "chosen": value is not None and room in chosen,
            "why": room.why,
        }
        for room in offers
    ]
    return {"cuda_visible_devices": value, "gpus": gpus}
