"""The MIG instances of a GPU: which there are, and the memory of each.

The driver may reuse a handle for another instance when the GPU is cut anew (nvml.h,
nvmlDeviceGetMigDeviceHandleByIndex), so the UUID is asked for with each reading.
"""

from __future__ import annotations

import itertools

import msgspec

from gpuwatch.model import Instance, Memory, Reason
from gpuwatch.sampler.figures import Ladder, missing_memory, read_memory
from gpuwatch.sampler.holdings import NO_INSTANCE, Entry, Lists
from gpuwatch.sampler.nvml import WHOLE_GPU, Code, Failed, Handle, reason
from gpuwatch.text import clean


class _Cut(msgspec.Struct):
    """One instance and the handle that it has until the GPU is cut anew."""

    handle: Handle
    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int
    memory: Memory


class Instances:
    """The instances of one GPU; they are looked up again every 60 s, and as soon as a handle means another one."""

    def __init__(self, ladder: Ladder, lists: Lists) -> None:
        self._ladder = ladder
        self._lists = lists
        self._cuts: list[_Cut] = []
        self._turn = itertools.count()

    def clear(self) -> None:
        """Forget all instances and their handles."""
        self._cuts = []

    def look_up(self, gpu: Handle) -> None:
        """Find the instances that there are now and read the memory of each; raises Failed."""
        calls = self._ladder.calls
        before = {cut.uuid: cut.memory for cut in self._cuts}
        self._cuts = []
        for index in range(calls.ask("nvmlDeviceGetMaxMigDeviceCount", gpu)):
            try:
                handle = calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
            except Failed as failed:
                if failed.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):
                    continue  # an empty slot: there may be more behind it
                raise
            uuid = clean(calls.text("nvmlDeviceGetUUID", handle))
            cut = _Cut(
                handle=handle,
                uuid=uuid,
                name=clean(calls.text("nvmlDeviceGetName", handle)),
                gpu_instance=calls.ask("nvmlDeviceGetGpuInstanceId", handle),
                compute_instance=calls.ask("nvmlDeviceGetComputeInstanceId", handle),
                memory=before.get(uuid, Memory()),
            )
            self._cuts.append(cut)
            if cut.uuid not in before:
                self._read(cut)

    def refresh(self, most: int) -> bool:
        """Read the memory of the next instances, `most` at most; two calls each.

        False where a handle means another instance than it did: then all are to be looked up. Raises Failed for what
        concerns the whole GPU.
        """
        for _ in range(min(most, len(self._cuts))):
            cut = self._cuts[next(self._turn) % len(self._cuts)]
            if not self._is_same(cut):
                return False
            self._read(cut)
        return True

    def _is_same(self, cut: _Cut) -> bool:
        try:
            return clean(self._ladder.calls.text("nvmlDeviceGetUUID", cut.handle)) == cut.uuid
        except Failed as failed:
            if failed.code in WHOLE_GPU:
                raise
            return False

    def _read(self, cut: _Cut) -> None:
        try:
            memory = read_memory(self._ladder, cut.handle)
        except Failed as failed:
            if failed.code in WHOLE_GPU:
                raise
            cut.memory = missing_memory(reason(failed.code))
        else:
            cut.memory = memory or missing_memory(Reason.UNSUPPORTED)

    def processes(self, kind: str) -> list[Entry]:
        """Ask each instance for its own process list, for a user who may not see the GPU's. Raises Failed."""
        found = []
        for cut in self._cuts:
            for entry in self._lists.processes(kind, cut.handle):
                if entry.gpu_instance == NO_INSTANCE:
                    entry = entry._replace(gpu_instance=cut.gpu_instance, compute_instance=cut.compute_instance)
                found.append(entry)
        return found

    def __len__(self) -> int:
        return len(self._cuts)

    def rows(self) -> tuple[Instance, ...]:
        """Give the instances as they were last seen."""
        return tuple(
            Instance(
                uuid=cut.uuid,
                name=cut.name,
                gpu_instance=cut.gpu_instance,
                compute_instance=cut.compute_instance,
                memory=cut.memory,
            )
            for cut in self._cuts
        )
