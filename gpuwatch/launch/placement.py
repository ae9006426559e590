"""Placement: finds GPUs with enough memory: free, and not promised to others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpuwatch.base.errors import UsageError
from gpuwatch.base.units import GIB, MIB, gib, ranges
from gpuwatch.model.shares import Reservation, active_reservations, find_promised, holder_name, usable, user_name
from gpuwatch.model.snapshot import Gpu, Health, Process, Promise, Reason, Snapshot, known

_MOST_NAMED = 3
"""Holders that a reason names, at most; the others are summed up."""


LEAST = GIB
"""Bytes that must be left on a GPU that is chosen, or named, without a size."""

_MPS_SERVER = "nvidia-cuda-mps"
"""Beginning of its name; the kernel keeps 15 characters."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that is requested on each GPU: `share` or `memory`; with only `empty`, all free memory."""

    share: float | None = None
    """Fraction of a GPU's usable memory."""
    memory: int | None = None
    """Bytes."""
    busy: float | None = None
    """Percent of utilization that a GPU may have, at most; None for any."""
    empty: bool = False
    """Whether the GPU must be empty: no program computes on it, and none of its memory is promised."""

    def bytes_on(self, gpu: Gpu) -> int | None:
        """Return the bytes requested on one GPU; None where its size is not known."""
        if self.memory is not None:
            return self.memory
        if self.share is None:
            return int(gpu.memory.free) if known(gpu.memory.free) else None
        whole = usable(gpu)
        return None if whole is None else int(self.share * whole)


class Offer(NamedTuple):
    """Free memory of one GPU, and whether a request fits."""

    gpu: Gpu
    wanted: int
    """Bytes requested; 0 where they cannot be computed."""
    free: int
    """Bytes that no process holds; 0 where that is not known."""
    promised: int
    """Bytes that were promised to others and are not taken yet."""
    why: str
    """Why the GPU cannot be used; empty where it can."""
    ignored: Sequence[Promise] = ()
    """Reservations that were not counted."""
    holders: Sequence[str] = ()
    """Users who compute on it or have memory of it promised, by name."""
    hopeless: bool = False
    """Whether the request can never fit, however long one waits."""

    @property
    def left(self) -> int:
        """Bytes: free memory, minus what is promised."""
        return max(0, self.free - self.promised)

    @property
    def summary(self) -> str:
        """Text about the memory: `35.0 GiB free, 30.0 promised`."""
        return f"{gib(self.free)} GiB free" + (f", {gib(self.promised)} promised" if self.promised else "")


def find_offers(
    snapshot: Snapshot,
    request: Request,
    reserved: Sequence[Reservation] = (),
    *,
    hidden: Mapping[str, str] | None = None,
    ignore: bool = False,
) -> list[Offer]:
    """Return an offer for each GPU, by index; `hidden` are the keys of GPUs that must not be used, with reasons.

    With `ignore` the reservations of others do not count, but their declarations do. Raises UsageError for a share of
    less than 1 MiB.
    """
    people = {process.pid: process for process in snapshot.processes}
    found = []
    for gpu in snapshot.gpus:
        counted = find_promised(gpu, people, reserved, snapshot.taken)
        others = active_reservations(gpu, reserved, snapshot.taken)
        ignored = [promise for promise in counted if promise.reserved] if ignore else []
        if ignore:
            counted, others = [promise for promise in counted if not promise.reserved], []
        wanted = request.bytes_on(gpu) or 0
        free = int(gpu.memory.free) if known(gpu.memory.free) else 0
        barred = (hidden or {}).get(gpu.key, "") or _unfit(gpu)
        why = barred or _exclusive(gpu, others, people) or _busy(gpu, request)
        if not why and request.empty:
            why = _used(gpu, people, counted)
        if not why and wanted < MIB and request.share is not None:
            raise UsageError(
                f"--share: {request.share} of GPU {gpu.index} is less than 1MiB; 0.4 or 40% is a usual share"
            )
        holders = {holder_name(one.pid, people) for one in gpu.holdings if one.kind != "G"}
        names = sorted(holders | {promise.user for promise in counted})
        hopeless = bool(barred) or wanted > (usable(gpu) or 0)
        offer = Offer(gpu, wanted, free, sum(one.bytes for one in counted), why, ignored, names, hopeless)
        if not why and offer.left < wanted:
            least = _at_least(offer.left)
            short = f"{least} GiB free, {gib(offer.wanted)} wanted"
            if offer.promised:
                short = f"{least} GiB left, {gib(offer.wanted)} wanted: {offer.summary}"
            offer = offer._replace(why=f"{short}{_taken(gpu, people, counted)}")
        found.append(offer)
    return found


def choose(offers: Iterable[Offer], count: int) -> list[Offer]:
    """Return the `count` GPUs with the most memory left, or fewer; of equal ones the less busy, then the first.

    Last come those that are busy although no process is listed: it is not known who uses them and for how long. So do
    those with figures that give an error, as they do before a GPU is lost.
    """
    fit = [offer for offer in offers if not offer.why]
    return sorted(fit, key=_rank)[:count]


def way_out(offers: Iterable[Offer], count: int) -> str:
    """Return the memory to ask for on `count` of the GPUs: `GPU 5 has 72.7 GiB left: try `--memory 72GiB` or …`.

    Empty where fewer of them fit; `offers` are those for `LEAST` bytes.
    """
    found = choose(offers, count)
    if len(found) < count:
        return ""
    left = min(offer.left for offer in found)
    share = min(10 * offer.left // (usable(offer.gpu) or offer.left) for offer in found) / 10
    which = f"GPU {found[0].gpu.index} has" if count == 1 else f"GPUs {ranges(one.gpu.index for one in found)} have"
    words = f"`--memory {left // GIB}GiB`" + (f" or `--share {share:g}`" if share else "")
    return f"{which} {_at_least(left)} GiB left{' or more' * (count > 1)}: try {words}"


def _at_least(size: int) -> str:
    """Return bytes in GiB, rounded down: free memory never seems to be enough."""
    return f"{int(size / GIB * 10) / 10:.1f}"


def _rank(offer: Offer) -> tuple[bool, int, float, int]:
    gpu, busy = offer.gpu, offer.gpu.utilization
    fails = Reason.ERROR in (gpu.power, gpu.temperature, gpu.sm_clock)
    return (gpu.is_busy_unlisted or fails, -offer.left, float(busy) if known(busy) else 100.0, offer.gpu.index)


def _unfit(gpu: Gpu) -> str:
    """Return why no program can start on a GPU; empty where it can."""
    if gpu.health is not Health.OK:
        return f"{gpu.health.value}: {gpu.words}" if gpu.words else gpu.health.value
    if gpu.mig is True:
        return "it is split into MIG instances, which gpuwatch does not choose"
    if not known(gpu.memory.free) or usable(gpu) is None:
        return "its memory cannot be read"
    return "its compute mode is prohibited" if gpu.compute_mode == "prohibited" else ""


def _exclusive(gpu: Gpu, reserved: Sequence[Reservation], people: Mapping[int, Process]) -> str:
    """Return who uses a GPU in exclusive mode; empty where that is the MPS server.

    Source: docs.nvidia.com/deploy/mps, "When to Use MPS": the mode restricts the MPS server, and not its clients.
    """
    if gpu.compute_mode != "exclusive process":
        return ""
    holders = [one for one in gpu.holdings if "C" in one.kind]
    servers = {pid for pid, process in people.items() if process.name.startswith(_MPS_SERVER)}
    if any("M" in one.kind or one.pid in servers for one in holders):
        return ""
    owners = [holder_name(one.pid, people) for one in holders]
    owners += [one.user or user_name(one.uid, people) for one in reserved]
    return f"its compute mode is exclusive process, and {owners[0]} uses it" if owners else ""


def _busy(gpu: Gpu, request: Request) -> str:
    if request.busy is None:
        return ""
    if not known(gpu.utilization):
        return "its utilization is not known"
    return f"{gpu.utilization:.0f} % busy, {request.busy:g} % allowed" if gpu.utilization > request.busy else ""


def _used(gpu: Gpu, people: Mapping[int, Process], promises: Sequence[Promise]) -> str:
    """Return why a GPU is not empty, or not known to be; empty where it is. Programs that only draw do not count."""
    if gpu.holdings_note:
        return f"it may not be empty: {gpu.holdings_note}"
    # Without persistence mode this sample wakes the GPU, and its first utilization may be that of waking up.
    if gpu.is_busy_unlisted and gpu.persistence is not False:
        return f"it is not empty: {gpu.utilization:.0f} % busy, but no process is listed"
    unknown = known(gpu.unattributed) and gpu.unattributed >= GIB
    if not (promises or unknown or any(one.kind != "G" for one in gpu.holdings)):
        return ""
    return f"it is not empty{_taken(gpu, people, promises)}"


def _taken(gpu: Gpu, people: Mapping[int, Process], promises: Sequence[Promise]) -> str:
    """Return who holds the memory of a GPU, and to whom more is promised."""
    holders: defaultdict[str, int] = defaultdict(int)
    for one in gpu.holdings:
        if known(one.memory):
            holders[holder_name(one.pid, people)] += int(one.memory)
    owed: defaultdict[str, int] = defaultdict(int)
    for promise in promises:
        owed[promise.user] += promise.bytes
    reasons = [f"held by {_named(holders)}"] if holders else []
    if owed:
        reasons.append(f"promised to {_named(owed)}")
    if known(gpu.unattributed) and gpu.unattributed >= GIB:
        reasons.append(f"{gib(gpu.unattributed)} of unknown processes")
    return "".join(f"; {word}" for word in reasons)


def _named(amounts: Mapping[str, int]) -> str:
    """Return amounts as text, the largest first: `ada 49.5, ben 14.1, 2 others 1.3`."""
    most = sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
    rest = most[_MOST_NAMED:]
    if len(rest) > 1:
        most = [*most[:_MOST_NAMED], (f"{len(rest)} others", sum(amount for _, amount in rest))]
    return ", ".join(f"{user} {gib(amount)}" for user, amount in most)
