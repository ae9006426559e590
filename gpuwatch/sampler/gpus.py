"""All GPUs of the machine: reads the driver's list of them, and follows its changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gpuwatch.base.text import clean
from gpuwatch.model.snapshot import INDEX_UNKNOWN, Gpu, Place, SourceState
from gpuwatch.sampler import nvml
from gpuwatch.sampler.gpu import RARE_PERIOD, Device, Shared
from gpuwatch.sampler.nvml import Code, Failed, Unusable, explain_down, no_gpu


class NoSuchGpu(Exception):
    """Error for `--gpu` with an index that the driver does not list; its text names the valid indices."""


class SampledGpus:
    """List of the machine's GPUs; the GPUs to skip can change at any time (`skip`).

    `only` and `skip` name a GPU by its UUID, or by its index while its UUID is unknown.
    """

    def __init__(
        self,
        shared: Shared,
        only: Collection[int | str] = (),
        skip: Collection[int | str] = (),
        known: Sequence[Place] = (),
        *,
        again: bool = False,
    ) -> None:
        """Read the driver's list; raises Unusable, or NoSuchGpu unless all of `only` was there before (`again`).

        `known` are the GPUs that an earlier sampler found.
        """
        self.driver = ""
        self.cuda = ""
        self._shared = shared
        self._calls = shared.calls
        self._only = frozenset(only)
        self._devices: list[Device] = []
        try:
            self.listed = self._ask_count()
            """Number of GPUs that the driver lists, with those that are skipped."""
            self._ask_versions()
        except Failed as failed:
            raise Unusable(SourceState.DRIVER_DOWN, explain_down(failed.code, shared.proc)) from failed
        if not self.listed:
            raise Unusable(SourceState.NO_GPU, no_gpu(shared.proc))
        unknown = sorted(one for one in self._only if isinstance(one, int) and not 0 <= one < self.listed)
        if unknown and not again:
            has = f"0 to {self.listed - 1}" if self.listed > 1 else "only GPU 0"
            raise NoSuchGpu(f"--gpu: there is no GPU {unknown[0]}; this machine has {has}")
        self._count_due = shared.clock() + RARE_PERIOD
        self._has_returned = False
        """Whether a skipped GPU is sampled again; its index may have changed meanwhile."""
        self._add_known(known)
        self.skip(skip)
        back = self._any_returned()
        if back or any(device.listed != self.listed for device in self._active if not device.missing):
            self._look_up(changed=back)

    def _add_known(self, known: Sequence[Place]) -> None:
        """Add the known GPUs, and the GPUs at all other indices, as far as `only` wants them."""
        self._devices = [Device(place, self._shared) for place in known if not self._only or _names(self._only, place)]
        taken = {place.index for place in known if place.listed}
        new: Collection[int | str] = self._only or range(self.listed)
        if not self._only and any(place.listed not in (0, self.listed) for place in known):
            new = ()  # the GPU at an index has to be looked up
        for index in range(self.listed):
            if index in new and index not in taken:
                self._devices.append(Device(Place(index, self.listed), self._shared))

    def _ask_count(self) -> int:
        return int(self._calls.ask("nvmlDeviceGetCount"))

    def _ask_versions(self) -> None:
        """Read the versions; one that this driver does not give stays empty. Raises Failed where the driver is down."""
        try:
            self.driver = self._shared.driver = clean(self._calls.text("nvmlSystemGetDriverVersion"))
            cuda = self._calls.ask("nvmlSystemGetCudaDriverVersion_v2")
            self.cuda = f"{cuda // 1000}.{cuda % 1000 // 10}"
        except Failed as failed:
            if failed.code in nvml.WHOLE_DRIVER:
                raise

    @property
    def _active(self) -> list[Device]:
        return [device for device in self._devices if not device.left_alone]

    def rows(self) -> list[Gpu]:
        """Return the last row of each GPU, by index."""
        return sorted((device.row for device in self._active), key=lambda row: row.index)

    def skip(self, gpus: Collection[int | str]) -> None:
        """Skip these GPUs from now on, and sample all others again."""
        back = [device for device in self._devices if device.leave_alone(_names(gpus, device.row))]
        if not back:
            return
        # One without a UUID is the GPU at its index, for as long as the driver lists as many.
        nobody = [device for device in back if not device.row.uuid and device.listed != self.listed]
        self._devices = [device for device in self._devices if device not in nobody]
        self._has_returned, self._count_due = True, 0.0

    def sample(self, progress: Callable[[], None]) -> None:
        """Sample every GPU that is due, one after the other; call `progress` after each but the last.

        Raises Unusable where the driver itself does not answer, so that only a new process can connect to it again.
        """
        if self._shared.clock() >= self._count_due:
            self._recount()
        asked = [device for device in self._active if not device.waits]
        for left, device in zip(range(len(asked) - 1, -1, -1), asked, strict=True):
            device.sample()
            if left:
                progress()
        self._check_driver()
        if any(device.moved or (device.failure and device.failure.code in nvml.NOT_THERE) for device in asked):
            self._count_due = 0.0  # look up all indices before the next sample
        self._shared.events.collect()
        self._update_xids()

    def listen(self) -> None:
        """Register the GPUs for the driver's events; to be called when no snapshot waits."""
        self._shared.events.listen([one for device in self._active if (one := device.registration)])
        self._update_xids()

    def _update_xids(self) -> None:
        for device in self._devices:
            device.update_xids()

    def _check_driver(self) -> None:
        """Raise Unusable where the failures mean that the driver itself does not answer."""
        failures = [device.failure for device in self._active if not device.missing]
        codes_seen = [failure.code for failure in failures if failure]
        if Code.UNINITIALIZED in codes_seen:
            raise Unusable(SourceState.DRIVER_DOWN, explain_down(Code.UNINITIALIZED, self._shared.proc))
        if codes_seen and len(codes_seen) == len(failures) and nvml.WHOLE_DRIVER.issuperset(codes_seen):
            raise Unusable(SourceState.DRIVER_DOWN, explain_down(codes_seen[0], self._shared.proc))

    # -- added and removed GPUs ---------------------------------------------------------------------------------------

    def _recount(self) -> None:
        """Check whether the driver's list has changed, and look the GPUs up again where it has."""
        self._count_due = self._shared.clock() + RARE_PERIOD
        try:
            count = self._ask_count()
        except Failed as failed:
            raise Unusable(SourceState.DRIVER_DOWN, explain_down(failed.code, self._shared.proc)) from failed
        moved = any(
            device.moved or (device.failure and device.failure.code == Code.NOT_FOUND) for device in self._active
        )
        changed = count != self.listed or moved or self._any_returned()
        self.listed = count
        if changed or self._has_returned:
            self._has_returned = False
            self._look_up(changed=changed)

    def _any_returned(self) -> bool:
        return any(device.missing and device.locate(self.listed) for device in self._active)

    def _look_up(self, *, changed: bool) -> None:
        """Find the index of each GPU: when one drops out, those behind it move up (nvml.h, nvmlDeviceGetCount).

        Where the list has `changed`, no known index is valid any more, not even that of a skipped GPU.

        A GPU that is not listed is missing; one that does not answer keeps its index. New GPUs are added, unless a free
        index may belong to a skipped GPU: a call would hang.
        """
        for device in self._devices if changed else ():
            device.listed = INDEX_UNKNOWN
        places = {device.row.index for device in self._active if device.locate(self.listed)}
        self._devices = [device for device in self._devices if self._keeps_place(device, places)]
        if self._only or any(device.left_alone and device.listed != self.listed for device in self._devices):
            return
        places |= {device.row.index for device in self._devices if device.left_alone or not device.row.uuid}
        known = {device.row.uuid: device for device in self._devices if device.row.uuid}
        for index in range(self.listed):
            uuid = "" if index in places else self._uuid_at(index)
            if uuid in known:  # in another slot, or its address is not known
                known[uuid].set_place(Place(index, self.listed))
            elif uuid:
                self._devices.append(Device(Place(index, self.listed), self._shared))

    def _keeps_place(self, device: Device, taken: Collection[int]) -> bool:
        """Return whether a GPU without a UUID still has its index; true for a GPU with a UUID."""
        if device.row.uuid or device.left_alone:
            return True
        device.listed = self.listed
        return device.row.index not in taken and device.row.index < self.listed

    def _uuid_at(self, index: int) -> str:
        """Return the UUID of the GPU at an index; empty where the GPU does not answer."""
        with self._calls.about(index, self.listed):
            try:
                handle = self._calls.ask("nvmlDeviceGetHandleByIndex", index)
                return clean(self._calls.text("nvmlDeviceGetUUID", handle))
            except Failed:
                return ""


def _names(gpus: Collection[int | str], gpu: Place | Gpu) -> bool:
    """Return whether `gpus` names this GPU: by its UUID, or by its index where the UUID is unknown."""
    return (gpu.uuid or gpu.index) in gpus
