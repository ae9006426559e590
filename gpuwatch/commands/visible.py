"""`gpuwatch visible 'VALUE'`: what a CUDA_VISIBLE_DEVICES value makes visible on this machine."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from gpuwatch.analysis.explanation import how_sure
from gpuwatch.commands.answer import Answer, Ask, cards
from gpuwatch.declared.visible_devices import CVD, ORDER, parse
from gpuwatch.model import Gpu, Snapshot, Visible
from gpuwatch.text import clean

_SHOWN = 200


def prepare(value: str | None, order: str | None, environ: Mapping[str, str], *, as_json: bool) -> Ask:
    """Understand the arguments: without a value it is the caller's own environment that is explained."""
    own = value is None
    value = environ.get(CVD) if own else value
    return functools.partial(_visible, value, order or environ.get(ORDER), own, as_json)


def _visible(value: str | None, order: str | None, own: bool, as_json: bool, snapshot: Snapshot) -> Answer:
    seen = parse(value, cards(snapshot), order, driver=snapshot.driver)
    code = 0 if seen.gpus else 1
    if as_json:
        return Answer([msgspec.json.encode(_json(seen, snapshot)).decode()], code=code)
    said = f"{CVD} is not set" if value is None else f"{CVD}={clean(value, _SHOWN)}"
    how = f", {ORDER}={clean(order, _SHOWN)}" if order else ""
    lines = [f"{said}{how}{' in your environment' if own else ''}", ""]
    lines += _table(seen, snapshot) or ["no GPU is visible"]
    hidden = [f"GPU {gpu.index}" for gpu in _hidden(seen, snapshot)]
    facts = {"order": how_sure(seen), "hidden": ", ".join(hidden), "note": seen.note}
    lines += ["", *(f"{name:<6}  {words}" for name, words in facts.items() if words)]
    return Answer(lines, code=code)


def _table(seen: Visible, snapshot: Snapshot) -> list[str]:
    rows = []
    for place, uuid in enumerate(seen.gpus):
        gpu, name = _named(uuid, snapshot)
        rows.append((f"cuda:{place}", f"GPU {gpu.index}" if gpu else "?", name, uuid))
    widths = [max(len(row[at]) for row in rows) for at in range(3)] if rows else []
    return [
        f"{ordinal:<{widths[0]}} → {index:<{widths[1]}}  {name:<{widths[2]}}  {uuid}"
        for ordinal, index, name, uuid in rows
    ]


def _named(uuid: str, snapshot: Snapshot) -> tuple[Gpu | None, str]:
    """Find the GPU, or the MIG instance of one, behind a UUID, and its name."""
    for gpu in snapshot.gpus:
        if gpu.key == uuid:
            return gpu, gpu.name
        for instance in gpu.instances:
            if instance.uuid == uuid:
                return gpu, instance.name
    return None, ""


def _hidden(seen: Visible, snapshot: Snapshot) -> list[Gpu]:
    shown = {gpu.key for gpu, _ in (_named(uuid, snapshot) for uuid in seen.gpus) if gpu}
    return [gpu for gpu in snapshot.gpus if gpu.key not in shown]


def _json(seen: Visible, snapshot: Snapshot) -> dict[str, object]:
    devices = []
    for place, uuid in enumerate(seen.gpus):
        gpu, name = _named(uuid, snapshot)
        devices.append({"ordinal": place, "gpu": gpu.index if gpu else None, "name": name, "uuid": uuid})
    hidden = [gpu.index for gpu in _hidden(seen, snapshot)]
    return {"devices": devices, "order": seen.order, "hidden": hidden, "note": seen.note}
