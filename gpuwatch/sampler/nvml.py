"""All GPUs of the machine, through NVML: which there are, each sampled on its own, and when to start afresh."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gpuwatch.model import Gpu, SourceState
from gpuwatch.sampler import codes
from gpuwatch.sampler.binding import Unusable, explain_down, no_gpu
from gpuwatch.sampler.codes import Code, Failed
from gpuwatch.sampler.device import RARE_PERIOD, Device, Shared
from gpuwatch.text import clean

_NOT_THERE = frozenset({Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.GPU_NOT_FOUND})
"""What the look-up of a GPU says when it is not where it was."""


class NoSuchGpu(Exception):
    """`--only` names an index that the driver does not list; its text says which there are."""


class Gpus:
    """The GPUs that we may ask, by index; `skip` may change while we run."""

    def __init__(
        self, shared: Shared, only: Collection[int] = (), skip: Collection[int] = (), *, again: bool = False
    ) -> None:
        """Ask the driver what there is; raises Unusable, or NoSuchGpu unless all of `only` was there `again`."""
        self.driver = ""
        self.cuda = ""
        self._shared = shared
        self._calls = shared.calls
        self._only = frozenset(only)
        self._skip = frozenset(skip)
        self._devices: list[Device] = []
        try:
            self._count = self._ask_count()
            self._ask_versions()
        except Failed as failed:
            raise Unusable(SourceState.DRIVER_DOWN, explain_down(failed.code, shared.proc)) from failed
        if not self._count:
            raise Unusable(SourceState.NO_GPU, no_gpu(shared.proc))
        if not again:
            self._check_indices()
        self._count_due = shared.clock() + RARE_PERIOD
        self._devices = [Device(index, shared) for index in range(self._count) if self._wanted(index)]

    def _ask_count(self) -> int:
        return int(self._calls.ask("nvmlDeviceGetCount"))

    def _ask_versions(self) -> None:
        """Ask for the versions; what only this driver does not tell stays empty. Raises Failed where it is down."""
        try:
            self.driver = self._shared.driver = clean(self._calls.text("nvmlSystemGetDriverVersion"))
            cuda = self._calls.ask("nvmlSystemGetCudaDriverVersion_v2")
            self.cuda = f"{cuda // 1000}.{cuda % 1000 // 10}"
        except Failed as failed:
            if failed.code in codes.WHOLE_DRIVER:
                raise

    def _check_indices(self) -> None:
        unknown = sorted(index for index in self._only if not 0 <= index < self._count)
        if unknown:
            has = f"0 to {self._count - 1}" if self._count > 1 else "only GPU 0"
            raise NoSuchGpu(f"--only: there is no GPU {unknown[0]}; this machine has {has}")

    def _wanted(self, index: int) -> bool:
        return index not in self._skip and (not self._only or index in self._only)

    @property
    def count(self) -> int:
        """NVML calls made so far."""
        return self._calls.count

    @property
    def listed(self) -> int:
        """GPUs that the driver lists, with those that we leave alone."""
        return self._count

    def rows(self) -> list[Gpu]:
        """Give the GPUs as they were last seen, by index."""
        return sorted((device.row for device in self._devices), key=lambda row: row.index)

    def skip(self, indices: Collection[int]) -> None:
        """Leave these GPUs alone from now on, and take up those that were left alone before."""
        self._skip = frozenset(indices)
        there = {device.row.index for device in self._devices}
        self._devices = [device for device in self._devices if self._wanted(device.row.index)]
        returned = (index for index in range(self._count) if self._wanted(index) and index not in there)
        self._devices += [Device(index, self._shared) for index in returned]

    def sample(self, progress: Callable[[], None]) -> None:
        """Ask every GPU that is due, one after the other, and call `progress` between them.

        Raises Unusable where the driver itself is out of reach, so that only a fresh process can find it again.
        """
        if self._shared.clock() >= self._count_due:
            self._recount()
        asked = [device for device in self._devices if not device.waits]
        for left, device in zip(range(len(asked) - 1, -1, -1), asked, strict=True):
            device.sample()
            if left:
                progress()
        self._judge()
        if any(device.failure and device.failure.code in _NOT_THERE for device in asked):
            self._count_due = 0.0  # before the next sample, look where they all are
        self._shared.events.drain()
        self._note_xids()

    def listen(self) -> None:
        """Register for the driver's events the GPUs that are not; no picture needs to wait for it."""
        self._shared.events.listen([post for device in self._devices if (post := device.post)])
        self._note_xids()

    def resume(self) -> None:
        """Take the driver's events after all."""
        self._shared.events.resume()

    def _note_xids(self) -> None:
        for device in self._devices:
            device.note_xids()

    def _judge(self) -> None:
        """Raise Unusable where the failures say that the driver itself is out of reach."""
        failures = [device.failure for device in self._devices if not device.missing]
        codes_seen = [failure.code for failure in failures if failure]
        if Code.UNINITIALIZED in codes_seen:
            raise Unusable(SourceState.DRIVER_DOWN, explain_down(Code.UNINITIALIZED, self._shared.proc))
        if codes_seen and len(codes_seen) == len(failures) and codes.WHOLE_DRIVER.issuperset(codes_seen):
            raise Unusable(SourceState.DRIVER_DOWN, explain_down(codes_seen[0], self._shared.proc))

    # -- GPUs that come and go -------------------------------------------------------------------------------------

    def _recount(self) -> None:
        """See whether the driver lists as many GPUs as before, and which where it does not."""
        self._count_due = self._shared.clock() + RARE_PERIOD
        try:
            count = self._ask_count()
        except Failed as failed:
            raise Unusable(SourceState.DRIVER_DOWN, explain_down(failed.code, self._shared.proc)) from failed
        moved = any(device.failure and device.failure.code == Code.NOT_FOUND for device in self._devices)
        if count != self._count or moved:
            self._count = count
            self._look_up()

    def _look_up(self) -> None:
        """Find each GPU's place by its UUID: when one drops out, those behind it move up (nvml.h, nvmlDeviceGetCount).

        A GPU that gives no UUID now keeps its place; one whose place is taken or gone is missing.
        """
        places = self._places()
        known = {device.row.uuid: device for device in self._devices if device.row.uuid}
        for device in self._devices:
            if device.row.uuid in places:
                device.found(places[device.row.uuid])
            elif device.row.index in places.values() or device.row.index >= self._count:
                device.vanish()
        self._devices += [Device(index, self._shared) for uuid, index in places.items() if uuid not in known]

    def _places(self) -> dict[str, int]:
        """Give the index of each GPU that can be asked for its UUID."""
        places: dict[str, int] = {}
        for index in filter(self._wanted, range(self._count)):
            with self._calls.about(index):
                try:
                    handle = self._calls.ask("nvmlDeviceGetHandleByIndex", index)
                    places[clean(self._calls.text("nvmlDeviceGetUUID", handle))] = index
                except Failed:  # it says what is wrong when it is sampled
                    continue
        return places
