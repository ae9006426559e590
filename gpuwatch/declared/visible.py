"""CUDA_VISIBLE_DEVICES, read as the CUDA driver reads it.

Sources: docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html (order, first invalid
entry, starts of UUIDs, CUDA_DEVICE_ORDER); pytorch/pytorch torch/cuda/__init__.py `_parse_visible_devices` and
test/test_cuda_nvml_based_avail.py, checked against driver 525.60.13 (pull 92315: duplicates, prefixes, signs, mixed
lists); docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html (MIG, before and since driver R570);
DataDog/datadog-agent pkg/gpu/cuda/env.go (where ordinals count GPUs in MIG mode).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gpuwatch.declared.facts import Card, Slice
from gpuwatch.model import Order, Visible
from gpuwatch.text import clean

PCI_BUS_ID = "PCI_BUS_ID"
FASTEST_FIRST = "FASTEST_FIRST"

_BLANKS = " \t\n\v\f\r"
_NUMBER = re.compile(r"([+-]?)([0-9]+)")
_OLD_INSTANCE = re.compile(r"MIG-(GPU-[^/]*)/([0-9]{1,9})/([0-9]{1,9})")
_VERSION = re.compile(r"[0-9]{3,4}(?=\.)")
# More digits than any count of GPUs has.
_MOST_DIGITS = 9
_SHOWN = 44  # a whole UUID

_FOLLOWS = "which hides all that follow"
_ONE_INSTANCE = "drivers before R570 show only the first MIG instance, and no other GPU"
_SEVERAL_INSTANCES = 570
"""The first driver that shows several MIG instances. Source: docs.nvidia.com/datacenter/tesla/mig-user-guide,
"CUDA Device Enumeration"; github.com/pytorch/pytorch/pull/92315 shows it for two UUIDs and driver 525."""


class _Device(NamedTuple):
    """What CUDA counts as one device."""

    uuid: str
    card: Card
    instance: Slice | None = None
    note: str = ""
    """What is odd about how it was named."""


def parse(value: str | None, cards: Sequence[Card], order: str | None = None, *, driver: str = "") -> Visible:
    """Say which of `cards` a process sees whose CUDA_VISIBLE_DEVICES is `value`, None for unset; never raises.

    `cards` are those that its container or job was given, in NVML's order; `order` is its CUDA_DEVICE_ORDER; `driver`
    is the driver's version. The result has no `text` and no `where`. What is seen of several MIG instances depends on
    the driver: where its version is not known the answer is that of R570 and later, and the note says so.
    """
    cards = _sorted([card for card in cards if card.uuid], order)
    notes: list[str] = []
    if value is None:
        found = _all(cards)
        by_ordinal = True
    else:
        entries = value.split(",")
        by_ordinal = not entries[0].startswith(("GPU-", "MIG-"))
        found = _one_per_gpu_instance(_listed(entries, cards, notes), notes)
    sure = certainty(cards, order) if by_ordinal and found else Order.EXACT
    if sure is Order.HEURISTIC and order and order != FASTEST_FIRST:
        notes.append(f"CUDA_DEVICE_ORDER={_shown(order)} is neither {FASTEST_FIRST} nor {PCI_BUS_ID}")
    notes += dict.fromkeys(device.note for device in found if device.note)
    instances = [device for device in found if device.instance]
    version = _VERSION.match(driver)
    if instances and len(found) > 1 and (not version or int(version[0]) < _SEVERAL_INSTANCES):
        notes.append(_ONE_INSTANCE)
        found = instances[:1] if version else found
    return Visible(gpus=tuple(device.uuid for device in found), order=sure, note="; ".join(notes))


def _sorted(cards: list[Card], order: str | None) -> list[Card]:
    """Put `cards` into CUDA's order.

    Without PCI_BUS_ID different models are sorted by their speed, which is a guess. NVIDIA's guide has "fastest to
    slowest … using a simple heuristic", up to CUDA 10 only "make that device 0, leaving the order of the rest of the
    devices unspecified", and tells the heuristic nowhere. Of one generation the one of more cores was seen to come
    first (github.com/alephium/gpu-miner/issues/7), of two the newer (shootthesound/Fizgig/issues/104). Drivers of
    2017 left the rest in the order of their slots (ethereum-mining/ethminer/issues/283).
    """
    if order == PCI_BUS_ID and all(card.bus_id for card in cards):
        return sorted(cards, key=lambda card: card.bus_id.lower())
    cards = sorted(cards, key=lambda card: card.index)
    speeds = _speeds(cards)
    return sorted(cards, key=lambda card: speeds[card.name], reverse=True)


def _speeds(cards: Sequence[Card]) -> dict[str, tuple[float, int]]:
    """Give what each model is sorted by: its generation, then cores and clock, or its memory where no core is counted.

    One number for a model: cards of one model have clocks of their own, and are not sorted by them. Where there is one
    model, or the generation of one is not known, all are equal.
    """
    known = all(card.capability is not None and card.name for card in cards)
    counted = all(card.cores and card.clock for card in cards)
    speeds = dict.fromkeys((card.name for card in cards), (0.0, 0))
    if known and len(speeds) > 1:
        for card in cards:
            size = (card.cores or 0) * (card.clock or 0) if counted else card.total or 0
            speeds[card.name] = max(speeds[card.name], (card.capability or 0.0, size))
    return speeds


def certainty(cards: Sequence[Card], order: str | None) -> Order:
    """Say how sure it is which of `cards` an ordinal means."""
    if any(card.mig for card in cards) and sum(len(card.slices) if card.mig else 1 for card in cards) > 1:
        return Order.HEURISTIC
    if len(cards) <= 1 or order == PCI_BUS_ID:
        return Order.EXACT
    names = {card.name for card in cards}
    return Order.IDENTICAL if len(names) == 1 and "" not in names else Order.HEURISTIC


# ---------------------------------------------------------------------------------------------------------------
# What there is to choose from


def _all(cards: Sequence[Card]) -> list[_Device]:
    """Give what CUDA shows where nothing is said: whole GPUs, then one compute instance of each GPU instance."""
    whole = [_Device(card.uuid, card) for card in cards if not card.mig]
    parts = [_Device(part.uuid, card, part) for card in cards if card.mig for part in card.slices]
    return _one_per_gpu_instance(whole + parts, [])


def _one_per_gpu_instance(devices: Sequence[_Device], notes: list[str]) -> list[_Device]:
    """Keep the first compute instance of each GPU instance: CUDA shows no second one."""
    kept: dict[tuple[str, int], _Device] = {}
    for device in devices:
        key = (device.card.uuid, device.instance.gpu_instance if device.instance else -1)
        first = kept.setdefault(key, device)
        if first is not device:
            notes.append(f"{_shown(device.uuid)} is in the same GPU instance as {_shown(first.uuid)}: CUDA shows one")
    return list(kept.values())


def _counted(cards: Sequence[Card]) -> list[_Device]:
    """Give the devices that ordinals count: whole GPUs first, then those in MIG mode by their first instance."""
    whole = [_Device(card.uuid, card) for card in cards if not card.mig]
    return whole + [_first(card) for card in cards if card.mig and card.slices]


def _first(card: Card) -> _Device:
    note = f"GPU {card.index} is in MIG mode: CUDA takes its first instance" if len(card.slices) > 1 else ""
    return _Device(card.slices[0].uuid, card, card.slices[0], note)


# ---------------------------------------------------------------------------------------------------------------
# The list


def _listed(entries: Sequence[str], cards: Sequence[Card], notes: list[str]) -> list[_Device]:
    """Give the devices of a list up to its first invalid entry, none where one is named twice; say what is odd."""
    found: list[_Device] = []
    counted = _counted(cards)
    for place, entry in enumerate(entries):
        device = _device(entry, _kind(entries[0]), cards, counted)
        if isinstance(device, str):
            notes += _ending(entry, device, last=place + 1 == len(entries))
            break
        if any(device.uuid == other.uuid for other in found):
            notes.append(f"{_shown(entry)} is given twice, which hides every GPU")
            return []
        found.append(device)
    return found


def _ending(entry: str, why: str, *, last: bool) -> list[str]:
    """Say what an invalid entry does; nothing of an empty value, a comma at the end, and `-1` for no GPU at all."""
    if entry.strip(_BLANKS) == "-1":
        return [] if last else ["-1 hides all that follow"]
    if last:
        return [why] if entry.strip(_BLANKS) else []
    return [f"{why}, {_FOLLOWS}"]


def _kind(entry: str) -> str:
    """Give the kind of an entry; blanks before a UUID make it none, as the driver compares from its first byte."""
    return entry[:4] if entry.startswith(("GPU-", "MIG-")) else ""


def _device(entry: str, kind: str, cards: Sequence[Card], counted: Sequence[_Device]) -> _Device | str:
    """Give the device that an entry of a list of `kind` means, or in words why it means none."""
    if not kind:
        return _by_ordinal(entry, counted)
    if _kind(entry) != kind:
        return _strange(entry, f"cannot stand in a list of {'GPU' if kind == 'GPU-' else 'MIG'} UUIDs")
    if kind == "MIG-":
        parts = [_Device(part.uuid, card, part) for card in cards if card.mig for part in card.slices]
        old = _OLD_INSTANCE.fullmatch(entry)
        return _only(entry, [one for one in parts if one.uuid.startswith(entry) or (old and _is_old(one, old))])
    named = _only(entry, [_Device(card.uuid, card) for card in cards if card.uuid.startswith(entry)])
    if isinstance(named, str) or not named.card.mig:
        return named
    return _first(named.card) if named.card.slices else f"{_shown(entry)} is in MIG mode and has no instance"


def _by_ordinal(entry: str, counted: Sequence[_Device]) -> _Device | str:
    """Give the device at an ordinal: the number that the entry begins with, in base 10, as of strtoul."""
    if _kind(entry):
        return _strange(entry, "cannot stand in a list of indices")
    number = _NUMBER.match(entry.strip(_BLANKS))
    if not number:
        return _strange(entry, "is no GPU")
    digits = number[2].lstrip("0") or "0"
    if number[1] == "-" and digits != "0":
        return _strange(entry, "is no GPU")
    if len(digits) > _MOST_DIGITS or int(digits) >= len(counted):
        return f"{_shown(entry)} is no GPU: there {_count(len(counted))}"
    device = counted[int(digits)]
    if number.end() == len(entry.strip(_BLANKS)):
        return device
    return device._replace(note="; ".join(filter(None, (f"{_shown(entry)} is read as {number[0]}", device.note))))


def _only(start: str, matches: Sequence[_Device]) -> _Device | str:
    """Give the only match; a UUID may be cut where it is still unique."""
    if len(matches) == 1:
        return matches[0]
    if not matches:
        return _strange(start, "is no GPU")
    noun = "MIG instances" if matches[0].instance else "GPUs"
    return f"{_shown(start)} is the start of {'two' if len(matches) == 2 else len(matches)} {noun}"


def _is_old(device: _Device, old: re.Match[str]) -> bool:
    """Whether a device is what the form of drivers before R470 names: MIG-GPU-<uuid>/<GPU inst.>/<compute inst.>."""
    part = device.instance
    return (
        part is not None
        and device.card.uuid.startswith(old[1])
        and (part.gpu_instance, part.compute_instance) == (int(old[2]), int(old[3]))
    )


def _count(number: int) -> str:
    return "is none" if number == 0 else "is one" if number == 1 else f"are {number}"


def _strange(entry: str, what: str) -> str:
    if not entry.strip(_BLANKS):
        return "an entry is empty"
    if "'" in entry or '"' in entry:
        return f"{_shown(entry)} is no GPU: the quotes are part of the value"
    if entry != entry.strip(_BLANKS) and _kind(entry.strip(_BLANKS)):
        return f"{_shown(entry.strip(_BLANKS))} {what}: there is a blank beside it"
    return f"{_shown(entry.strip(_BLANKS))} {what}"


def _shown(entry: str) -> str:
    return clean(entry.strip(_BLANKS), _SHOWN)
