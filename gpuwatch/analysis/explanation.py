"""Explanation of one process in words: its declarations, visible GPUs and holdings. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from gpuwatch.alerts.limits import Allowances
from gpuwatch.alerts.rule import joined
from gpuwatch.alerts.rules.shares import allowance
from gpuwatch.base.units import ranges, size
from gpuwatch.model.shares import LimitUsage, is_conclusive, limit_usages
from gpuwatch.model.snapshot import (
    Basis,
    Container,
    Declaration,
    Declared,
    Gpu,
    Kind,
    Knowledge,
    Notebook,
    Order,
    Pane,
    Process,
    Reason,
    Run,
    Snapshot,
    Visible,
    known,
    number,
)

_ORDERS = {
    Order.EXACT: "exact",
    Order.IDENTICAL: "likely: all GPUs are one model, which CUDA numbers as NVML does",
    Order.HEURISTIC: "a guess: the models differ, and CUDA puts the fastest first",
}

_UNITS = {
    Basis.TOTAL: "of the GPU",
    Basis.FREE_AT_START: "of what is free at start",
    Basis.FREE_AFTER_LOAD: "of what is free after loading",
    Basis.NONE: "of the SMs",
}
_GPU = "GPU "
"""Words before the index of a whole GPU."""


class Point(NamedTuple):
    """Line of an explanation."""

    label: str
    value: str
    aside: str = ""
    """Evidence of the line: the words as they were written, their place, and how certain the line is."""


def explain_process(process: Process, snapshot: Snapshot, allowances: Allowances | None = None) -> list[Point]:
    """Return all that is known of a process, declarations in effect first; `snapshot` has the GPUs and the holdings.

    Without `allowances` the defaults apply.
    """
    names = _names(snapshot.gpus)
    declared = process.declared
    points: list[Point] = []
    if declared is None:
        points.append(Point("declared", "not known: it was not read"))
    else:
        if declared.knowledge is not Knowledge.READ or declared.incomplete:
            words = declared.words or declared.knowledge.value
            points.append(Point("not read", words, "it may have declared more than is shown"))
        elif declared.words:
            points.append(Point("read", declared.words))
        if declared.frameworks:
            together = "exchanges data between GPUs, which needs extra buffers" if declared.collective else ""
            points.append(Point("uses", ", ".join(declared.frameworks), together))
        points.append(_sees(declared, names))
        said = [one for one in declared.declarations if one.kind is not Kind.DEFAULT]
        points += (_declaration(one, names) for one in said)
        if declared.left_out:
            points.append(Point("also set", _more(declared.left_out, "statement"), "also considered, not listed here"))
        if not said and declared.knowledge is Knowledge.READ and not declared.incomplete:
            points.append(Point("declared", "nothing"))
        for one in declared.declarations:
            if one.kind is Kind.DEFAULT and one.effective:
                words = one.text.removeprefix(f"default of {one.framework}: ")
                points.append(Point("default", words, joined(one.framework, one.why, between="; ")))
    points += _holdings(process, snapshot, allowances)
    if declared is not None:
        points += (Point("hint", hint.words) for hint in declared.hints)
        if declared.hints_left_out:
            points.append(Point("hint", _more(declared.hints_left_out, "hint")))
    return points


def _more(number: int, what: str) -> str:
    return f"… and {number} more {what}{'s' * (number > 1)}"


def _names(gpus: Iterable[Gpu]) -> Mapping[str, str]:
    """Return the names of GPUs and MIG instances by UUID."""
    names = {}
    for gpu in gpus:
        names[gpu.uuid] = f"{_GPU}{gpu.index}"
        for instance in gpu.instances:
            names[instance.uuid] = f"MIG {instance.gpu_instance}/{instance.compute_instance} of GPU {gpu.index}"
    return names


def order_words(visible: Visible) -> str:
    """Return how certain the order of the visible GPUs is; empty where there are none."""
    return _ORDERS[visible.order] if visible.gpus else ""


def _sees(declared: Declared, names: Mapping[str, str]) -> Point:
    visible = declared.visible
    if visible is None:
        return Point("sees", "not known", declared.unseen)
    said = visible.text or "not set, so all are visible"
    gpus = ", ".join(f"cuda:{place} → {names.get(uuid, uuid)}" for place, uuid in enumerate(visible.gpus))
    return Point("sees", gpus or "no GPU", joined(said, visible.where, order_words(visible), visible.note))


def _declaration(one: Declaration, names: Mapping[str, str]) -> Point:
    holds = one.effective and bool(one.limits)
    label = "declared" if holds else "possible" if one.condition else "also set"
    place = f"{one.where}:{one.line}" if one.line else one.where
    effect = joined("in effect" if one.effective else "not in effect", one.why, between=": ")
    if one.condition or (one.effective and not one.limits and one.why):
        effect = one.why
    aside = joined(one.text or one.channel, place, one.framework, one.confidence.value, effect)
    amount, scope = _amount(one), f"in total for {one.scope}" if one.scope else ""
    if one.basis is Basis.BYTES and set(one.limits.values()) == {one.value}:  # to print the bytes once is enough
        value = joined(f"{amount} on {_gpus(one.limits, names)}", scope, between=", ")
    else:
        by_size: defaultdict[int, list[str]] = defaultdict(list)
        for uuid, bytes_ in one.limits.items():
            by_size[bytes_].append(uuid)
        limits = "; ".join(f"{size(bytes_)} on {_gpus(uuids, names)}" for bytes_, uuids in by_size.items())
        value = joined(amount, limits, scope, between=", ")
    return Point(label, joined(value, one.condition, between=" "), aside)


def _amount(one: Declaration) -> str:
    """Return the kind and the number of a declaration: `share 0.4 of the GPU`."""
    kind = "share" if one.kind is Kind.CAP else one.kind.value
    if one.value is None:
        return kind if one.kind is Kind.GROWTH else f"{kind}, no fixed number"
    return f"{kind} {size(one.value)}" if one.basis is Basis.BYTES else f"{kind} {one.value:g} {_UNITS[one.basis]}"


def _gpus(uuids: Collection[str], names: Mapping[str, str]) -> str:
    """Return the names of several GPUs: `GPU 0`, `each of GPU 0-7`; an unknown one by its UUID."""
    whole = [names[uuid].removeprefix(_GPU) for uuid in uuids if names.get(uuid, "").startswith(_GPU)]
    others = [names.get(uuid, uuid) for uuid in uuids if not names.get(uuid, "").startswith(_GPU)]
    listed = ", ".join([_GPU + ranges(map(int, whole)), *others] if whole else others)
    return f"each of {listed}" if len(uuids) > 1 else listed


def _holdings(process: Process, snapshot: Snapshot, allowances: Allowances | None) -> Iterator[Point]:
    others = tuple(one for one in snapshot.processes if one.pid != process.pid)
    everybody = replace(snapshot, processes=(*others, process))
    usages = [usage for usage in limit_usages(everybody) if process.pid in usage.pids]
    people = {one.pid: one for one in everybody.processes}
    for gpu in snapshot.gpus:
        held = [one.memory for one in gpu.holdings if one.pid == process.pid]
        if not held:
            continue
        reasons = [memory for memory in held if isinstance(memory, Reason)]
        amount = size(sum(memory for memory in held if known(memory)))
        value = f"an amount that is not known ({reasons[0].value})" if reasons else amount
        verdicts = [_verdict(usage, gpu, people, allowances) for usage in usages if usage.gpu == gpu.uuid]
        without = "no share declared" if is_conclusive(process.declared) else "not known whether it declared a share"
        yield Point("holds", f"{value} on GPU {gpu.index}", "; ".join(verdicts) or without)


def _verdict(standing: LimitUsage, gpu: Gpu, people: Mapping[int, Process], allowances: Allowances | None) -> str:
    """Return how the memory compares with a limit: below, within the allowance, or above."""
    limit = standing.limit
    collective = any((declared := people[pid].declared) is not None and declared.collective for pid in standing.pids)
    room = allowance(limit, number(gpu.memory.total), collective=collective, allowances=allowances)
    over = standing.held - limit.bytes
    count = len(standing.pids)
    many = f"{count} processes" if count > 1 else "1 process"
    whose = f"{standing.scope} holds {size(standing.held)} in {many}: " if standing.scope else ""
    whole = f"the declared {size(limit.bytes)}"
    if over <= 0:
        if not standing.complete:
            return f"{whose}not known to be over {whole}"
        return f"{whose}{size(-over)} under {whole}"
    within = "within" if over <= room else "more than"
    return f"{whose}{size(over)} over {whole}, {within} the allowance of {size(room)}"


# ---------------------------------------------------------------------------------------------------------------
# What it runs in


def context_points(process: Process) -> list[Point]:
    """Return lines about the container, job, terminal and run of a process; empty where they were not read."""
    around = process.context
    if around is None:
        return []
    server = "waits for requests, so it is not a stray when idle"
    login = f"{around.login or '?'} (uid {around.login_uid})" if around.login_uid is not None else ""
    points = [
        Point("pod", around.pod),
        Point("container", _describe_container(around.container) if around.container else ""),
        Point("Slurm job", around.slurm),
        Point("batch job", around.batch),
        Point("systemd unit", around.unit, "a user unit" if around.user_unit else ""),
        Point("notebook", _describe_notebook(around.notebook) if around.notebook else ""),
        Point("terminal", _describe_pane(around.pane) if around.pane else ""),
        Point("SSH login", f"from {around.ssh}" if around.ssh else ""),
        Point("logged in as", login, "by the login uid"),
        Point("server", around.server, server),
        Point("connected to", around.peer, "it may wait for that"),
        Point("run", _describe_run(around.run) if around.run else ""),
        Point(
            "login", f"the leader of its session ({process.session}) has ended" if process.leader_alive is False else ""
        ),
        Point("parent", f"has ended; adopted by {process.parent or 'PID 1'}" if process.adopted else ""),
        Point("not read", around.words),
    ]
    return [point for point in points if point.value]


def _describe_container(container: Container) -> str:
    """Return a container in words: `docker vllm-llama (3f9a1c0b77d2)`."""
    number = f"({container.id})" if container.name and container.id else container.id
    return joined(container.runtime, container.name, number, between=" ")


def _describe_notebook(notebook: Notebook) -> str:
    """Return a notebook, its kernel and its server in words."""
    server = f"server {notebook.server}" if notebook.server is not None else ""
    server = "its server has ended" if notebook.left else server
    return joined(notebook.path, f"kernel {notebook.kernel}" if notebook.kernel else "", server) or "a kernel"


def _describe_pane(pane: Pane) -> str:
    """Return a window of a multiplexer in words: `tmux session $1, pane %3`."""
    session = f"{pane.program} session {pane.session}" if pane.session else pane.program
    kind = "pane" if pane.window.startswith("%") else "window"
    ended = "which has ended" if pane.alive is False else ""
    return joined(session, f"{kind} {pane.window}" if pane.window else "", ended, between=", ")


def _describe_run(run: Run) -> str:
    """Return a run and the role of a process in it: `train.py · torchrun · rank 3 of 8`."""
    rank = f"rank {run.rank}" + (f" of {run.world}" if run.world else "") if run.rank is not None else ""
    worker = f"worker of {run.worker_of}" if run.worker_of is not None else ""
    began = f"first PID {run.head}" if run.head and run.head != run.worker_of else ""
    return joined(run.name, run.launcher, rank, worker, "its run has ended" if run.orphaned else began)
