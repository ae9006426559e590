"""What the sampler says of GPUs over minutes, as `stories.jsonl` tells them, on a clock that the test moves.

Each story has steps: the driver is changed, some seconds go by with a look each, and the rows of the last look are
compared. `gpus` are all GPUs anew (`eight`: those of `support.sampling`), `set` are changes of one, `drop` is the place
of one that the driver no longer lists; `procs` are processes as [GPU, PID, figures], `add` more of them, `xids` is what
happens as [GPU, code]. `look` is [times, seconds], [1, 1] by default, with the GPU in `focus` or none. `rows` are by
place and `of` by the number of a GPU's UUID; `calls` are counted from the start, with [least, most] or exactly.
"""

from __future__ import annotations

import re
from dataclasses import replace
from operator import attrgetter
from typing import Any

import msgspec

from gpuwatch.model import Gpu, Reason
from tests.declared.tables import Case, cases
from tests.driver import GIB, Code, Driver, Mig, Proc
from tests.driver import Gpu as Card
from tests.sampler.test_sampler_time import Later, Look, later
from tests.support.sampling import ME, eight

__all__ = ["later"]


def figure(value: Any) -> Any:
    """Return a figure of the driver, or one that is expected: `3GiB`, "me", {"code": 15}, {"bytes": …}, or itself."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+GiB", value):
        return int(value[:-3]) * GIB
    if isinstance(value, list):
        return [figure(one) for one in value]
    if isinstance(value, dict) and value.keys() == {"code"}:
        return Code(value["code"])
    if isinstance(value, dict) and value.keys() == {"bytes"}:
        return value["bytes"].encode("latin-1")
    return ME if value == "me" else value


def fields(written: Case) -> Case:
    """Return the fields of a GPU of the driver, with its instances."""
    found = {name: figure(value) for name, value in written.items()}
    if "migs" in written:
        found["migs"] = [Mig(**{name: figure(value) for name, value in one.items()}) for one in written["migs"]]
    if "values" in written:
        found["values"] = {int(number): figure(value) for number, value in written["values"].items()}
    return found


def change(driver: Driver, step: Case) -> None:
    """Do to the driver what a step says."""
    if step.get("eight"):
        eight(driver)
    if "gpus" in step:
        driver.gpus = [Card(**fields(one)) for one in step["gpus"]]
    for place, changes in step.get("set", {}).items():
        driver.gpus[int(place)] = replace(driver.gpus[int(place)], **fields(changes))
    if "drop" in step:
        del driver.gpus[step["drop"]]
    kept = [] if "procs" in step else driver.procs
    listed = [*step.get("procs", []), *step.get("add", [])]
    added = [Proc(gpu, figure(pid), **fields(more)) for gpu, pid, more in listed]
    driver.procs = [*kept, *added]
    driver.faults = step.get("faults", driver.faults)
    driver.xids = [*driver.xids, *(tuple(one) for one in step.get("xids", ()))]
    driver.write()


def observed(row: Gpu, look: Look, field: str) -> Any:
    """Return a field of a row: also of its first holding, of its instances, how often each XID came, and its age."""
    if field == "xids":
        return row.xids if isinstance(row.xids, Reason) else {str(xid.code): xid.count for xid in row.xids}
    if field == "held":
        return [one.pid for one in row.holdings]
    if field == "age":
        return look.now - row.sampled
    if field.startswith("slices"):
        return [one.memory.used if field.endswith("used") else one.gpu_instance for one in row.instances]
    if field.startswith("held."):
        return getattr(row.holdings[0], field.removeprefix("held."))
    return attrgetter(field)(row)


def assert_row(row: Gpu, look: Look, expected: Case) -> None:
    for field, value in expected.items():
        found = msgspec.to_builtins(observed(row, look, field))
        if field in ("words", "holdings_note") and value:
            assert value in found, row
        else:
            assert (list(found) if isinstance(found, tuple) else found) == figure(value), (field, row)


@cases("sampler/stories")
def test_a_story(driver: Driver, later: Later, case: Case) -> None:
    before: Look | None = None
    for step in case["steps"]:
        change(driver, step)
        times, seconds = step.get("look", (1, 1))
        focus = str(driver.gpus[step["focus"]].uuid) if "focus" in step else ""
        look = [later(seconds, focus) for _ in range(times)][-1]
        for place, expected in step.get("rows", {}).items():
            assert_row(look.gpus[int(place)], look, expected)
        for number, expected in step.get("of", {}).items():
            (row,) = [one for one in look.gpus if one.uuid.startswith(f"GPU-{int(number):08x}")]
            assert_row(row, look, expected)
        for name in step.get("same", ()):
            assert before is not None
            assert [getattr(row, name) for row in look.gpus] == [getattr(row, name) for row in before.gpus]
        for call, number in step.get("calls", {}).items():
            name, _, gpu = call.partition("@")
            least, most = number if isinstance(number, list) else (number, number)
            assert least <= driver.calls(*([int(gpu)] if gpu else []))[name] <= most, call
        before = look
