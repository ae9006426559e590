"""Facts about the machine: its PID limit, containers, versions of the driver, and the use of its CPUs and memory.

Each function takes the root of /proc, so that a test can use its own folder.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gpuwatch.base.procfs import PROC, TICKS
from gpuwatch.base.text import clean
from gpuwatch.model.snapshot import HostUsage, Reading, Reason, known

_PID_MAX_ANYWHERE = 4 * 1024 * 1024
"""PID_MAX_LIMIT of 64-bit kernels (include/linux/threads.h)."""

_CGROUPS: Final = Path("/sys/fs/cgroup")
_SHORTEST_CPU: Final = 0.1
"""Seconds over which the use of CPUs is measured, at least: the kernel counts hundredths of a second."""

_CONTAINER_CGROUP = re.compile(r"docker|containerd|kubepods|libpod|crio|lxc|garden|machine\.slice")
_SIZES = re.compile(r"^(MemTotal|MemAvailable|SwapTotal|SwapFree): *(\d+)", re.MULTILINE)
_HIDEPID = re.compile(r"\bhidepid=(?!0\b|off\b)\w+")
_OPEN_MODULE = re.compile(r"^NVRM version: NVIDIA UNIX Open Kernel Module\D.*?\s(\d{3,4})\.(\d{1,4})\b", re.MULTILINE)
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")


def _text(path: Path | str) -> str:
    """Read a small file; return an empty text where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def pid_max(proc: Path = PROC) -> int:
    """Return the greatest possible PID on this machine; where it cannot be read, the greatest on any machine."""
    text = _text(proc / "sys/kernel/pid_max").strip()
    return int(text) if text.isdecimal() else _PID_MAX_ANYWHERE


def in_container(proc: Path = PROC, root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether there is a sign that we run in a container."""
    if "KUBERNETES_SERVICE_HOST" in environment or environment.get("container"):
        return True
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    return any(_CONTAINER_CGROUP.search(_text(proc / pid / "cgroup")) for pid in ("self", "1"))


def hides_pids(proc: Path = PROC) -> bool:
    """Return whether /proc is mounted so that other users' processes are hidden; source: proc(5), hidepid."""
    lines = (line.partition(" - ") for line in _text(proc / "self/mountinfo").splitlines())
    found = [source for mount, _, source in lines if source.startswith("proc ") and mount.split()[4:5] == ["/proc"]]
    return any(map(_HIDEPID.search, found))


def loaded_driver(proc: Path = PROC) -> str:
    """Return the version of the loaded kernel module; empty where none is loaded."""
    found = _VERSION.search(_text(proc / "driver/nvidia/version"))
    return found[0] if found else ""


def lists_own_pids(proc: Path = PROC) -> bool:
    """Return whether the driver certainly lists processes by the PIDs of our PID namespace, and only those.

    In a container an older driver gives the PIDs of the host, and any of them may by chance be a PID in the container.
    The open kernel modules translate the list since 535.113.01 and the memory of each process since 565.57.01; between
    the two, the memory is that of the process with the same number on the host. Source: _gpuConvertPid in gpu_rmapi.c
    of NVIDIA/open-gpu-kernel-modules. Nothing is published about the proprietary modules and WSL. An open device file
    is no proof: each CUDA program in the container has one.
    """
    found = _OPEN_MODULE.search(_text(proc / "driver/nvidia/version"))
    return found is not None and (int(found[1]), int(found[2])) >= (565, 57)


def library_version(proc: Path = PROC) -> str:
    """Return the version in the file name of the NVML library that is mapped; empty where the name has none."""
    for line in _text(proc / "self/maps").splitlines():
        _, found, suffix = line.partition("libnvidia-ml.so.")
        if found:
            version = _VERSION.search(suffix)
            return version[0] if version else ""
    return ""


def limit_memory(room: int) -> None:
    """Limit the memory that this process may map to `room` bytes more than now; a lower limit of the user stays.

    Above the limit Python raises MemoryError and malloc(3) returns NULL. Source: RLIMIT_AS in getrlimit(2),
    `size` in proc_pid_statm(5).
    """
    try:
        most = int(PROC.joinpath("self/statm").read_bytes().split()[0]) * resource.getpagesize() + room
        limit, hard = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY or limit > most:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (OSError, ValueError):  # no /proc, or a sandbox that forbids it: this limit is only the last protection
        return


def host_name() -> str:
    return clean(os.uname().nodename)


class MemoryUse(NamedTuple):
    """The machine's memory and swap in bytes; `available` includes what the kernel can reclaim."""

    total: int
    available: int
    swap_total: int
    swap_free: int


def read_memory_use(proc: Path = PROC) -> MemoryUse | None:
    """Return the use of memory; None where it cannot be read. Source: proc_meminfo(5)."""
    try:
        kib = {name: int(size) for name, size in _SIZES.findall(_text(f"{proc}/meminfo"))}
        total, available = kib["MemTotal"], kib["MemAvailable"]
    except (KeyError, ValueError):
        return None
    # A container may show its own total beside the machine's available memory.
    figures = (total, min(available, total), kib.get("SwapTotal", 0), kib.get("SwapFree", 0))
    return MemoryUse(*(1024 * one for one in figures))


class _CpuTime(NamedTuple):
    """CPU time of the machine since boot, in ticks of all CPUs together."""

    busy: int
    total: int


def _read_cpu_time(proc: Path) -> _CpuTime | None:
    """Return the machine's CPU time; None where it cannot be read. Source: proc_stat(5)."""
    try:
        with open(f"{proc}/stat", "rb") as file:
            times = list(map(int, file.readline().split()[1:9]))  # a guest's time is in `user` and `nice` already
        total, idle = sum(times), times[3] + times[4]
    except (OSError, ValueError, IndexError):
        return None
    return _CpuTime(total - idle, total)


class HostReader:
    """Reader of the use of the machine's CPUs and memory, and of the limits of our container."""

    def __init__(self, proc: Path = PROC, cgroups: Path = _CGROUPS, *, contained: bool | None = None) -> None:
        """Begin to measure the use of CPUs; limits are read where we are `contained` (None: where it looks so)."""
        self._proc = proc
        self._before = _read_cpu_time(proc)
        self._cpu: Reading = Reason.NO_SAMPLE if self._before else Reason.ERROR
        self._cores = os.cpu_count() or 1
        is_inside = in_container(proc) if contained is None else contained
        self._cgroups = _Cgroups(proc, cgroups) if is_inside else None

    def read(self) -> HostUsage:
        now, before = _read_cpu_time(self._proc), self._before
        if now and before and now.total - before.total >= _SHORTEST_CPU * TICKS * self._cores:
            # The kernel may correct the time of waiting for disks downwards.
            self._cpu = round(100 * min(1.0, max(0.0, (now.busy - before.busy) / (now.total - before.total))), 1)
            self._before = now
        memory = read_memory_use(self._proc)
        try:
            load: Reading = round(os.getloadavg()[0], 2)
        except OSError:
            load = Reason.ERROR
        total: Reading = memory.total if memory else Reason.ERROR
        cpu_limit, memory_limit, of_limit = self._cgroups.read() if self._cgroups else (Reason.UNSUPPORTED,) * 3
        if known(memory_limit) and known(total) and memory_limit >= total:  # v1 writes a large number for none
            memory_limit = of_limit = Reason.UNSUPPORTED
        return HostUsage(
            cores=self._cores,
            cpu=self._cpu,
            memory_total=total,
            memory_used=max(0, memory.total - memory.available) if memory else Reason.ERROR,
            swap_total=memory.swap_total if memory else Reason.ERROR,
            swap_used=max(0, memory.swap_total - memory.swap_free) if memory else Reason.ERROR,
            load=load,
            cpu_limit=cpu_limit,
            memory_limit=memory_limit,
            memory_of_limit=of_limit,
        )


class _Cgroups:
    """Our cgroup and those above it, as far as the container shows them: the lowest limit holds.

    Source: cgroup-v2.rst (cpu.max, memory.max) and cgroup-v1 (memory.rst, sched-bwc.rst) of the kernel's documentation.
    """

    def __init__(self, proc: Path, mount: Path) -> None:
        lines = [line.split(":", 2) for line in _text(proc / "self/cgroup").splitlines() if line.count(":") >= 2]
        paths = {name: path for _, names, path in lines for name in names.split(",")}
        self._v2 = (mount / "cgroup.controllers").exists()
        mounts = [mount, mount] if self._v2 else [mount / "memory", mount / "cpu"]
        own = [paths.get("", "")] * 2 if self._v2 else [paths.get("memory", ""), paths.get("cpu", "")]
        self._memory, self._cpu = (_upwards(top, path) for top, path in zip(mounts, own, strict=True))

    def read(self) -> tuple[Reading, Reading, Reading]:
        """Return the limit of CPUs, the limit of memory, and the bytes that count against it."""
        names = ("memory.max", "memory.current", "inactive_file")
        if not self._v2:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit_name, used_name, cache_name = names
        limits = [
            (int(text), one) for one in self._memory if (text := _text(f"{one}/{limit_name}").strip()).isdecimal()
        ]
        cpus = [float(quota) / float(period) for quota, period in map(self._quota, self._cpu) if quota.isdecimal()]
        cpu_limit: Reading = round(min(cpus), 2) if cpus else Reason.UNSUPPORTED
        if not limits:
            return cpu_limit, Reason.UNSUPPORTED, Reason.UNSUPPORTED
        limit, folder = min(limits, key=lambda one: one[0])
        used = _text(f"{folder}/{used_name}").strip()
        cache = re.search(rf"^{cache_name} (\d+)$", _text(f"{folder}/memory.stat"), re.MULTILINE)
        of_limit = max(0, int(used) - int(cache[1] if cache else 0)) if used.isdecimal() else Reason.ERROR
        return cpu_limit, limit, of_limit

    def _quota(self, folder: Path) -> tuple[str, str]:
        """Return quota and period of a cgroup; a quota that is not a number means none."""
        if self._v2:
            quota, _, period = _text(f"{folder}/cpu.max").strip().partition(" ")
            return quota, period
        quota, period = (_text(f"{folder}/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        return quota, period


def _upwards(mount: Path, path: str) -> list[Path]:
    """Return the folders of a cgroup and of those above it, the lowest first; a container may show only the top."""
    folder = mount / ("" if ".." in path else path.lstrip("/"))
    return [one for one in (folder, *folder.parents) if one.is_relative_to(mount) and one.is_dir()]
