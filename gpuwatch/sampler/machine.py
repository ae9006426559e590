"""Facts about the machine: its PID limit, containers, and versions of the driver.

Each function takes the root of /proc, so that a test can use its own folder.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path

from gpuwatch.procfs import PROC
from gpuwatch.text import clean

_PID_MAX_ANYWHERE = 4 * 1024 * 1024
"""PID_MAX_LIMIT of 64-bit kernels (include/linux/threads.h)."""

_CONTAINER_CGROUP = re.compile(r"docker|containerd|kubepods|libpod|crio|lxc|garden|machine\.slice")
_HIDEPID = re.compile(r"\bhidepid=(?!0\b|off\b)\w+")
_OPEN_MODULE = re.compile(r"^NVRM version: NVIDIA UNIX Open Kernel Module\D.*?\s(\d{3,4})\.(\d{1,4})\b", re.MULTILINE)
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")


def _text(path: Path) -> str:
    """Read a small file; return an empty text where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
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
    for line in _text(proc / "self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        if source.startswith("proc ") and mount.split()[4:5] == ["/proc"] and _HIDEPID.search(source):
            return True
    return False


def loaded_driver(proc: Path = PROC) -> str:
    """Return the version of the loaded kernel module; empty where none is loaded."""
    found = _VERSION.search(_text(proc / "driver/nvidia/version"))
    return found[0] if found else ""


def lists_own_pids(proc: Path = PROC) -> bool:
    """Return whether the driver certainly lists processes by the PIDs of our PID namespace, and only those.

    In a container an older driver gives the PIDs of the host, any of which may be one of the container's by chance.
    The open kernel modules translate the list since 535.113.01 and the memory of each process since 565.57.01; between
    the two a process has the memory of whoever has its number on the host. Source: _gpuConvertPid in gpu_rmapi.c of
    NVIDIA/open-gpu-kernel-modules. Of the proprietary modules and of WSL nothing like it is published. That a process
    has the device open proves nothing: each CUDA program in the container has.
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

    Beyond the limit Python raises MemoryError and malloc(3) returns NULL. Source: RLIMIT_AS in getrlimit(2),
    `size` in proc_pid_statm(5).
    """
    try:
        most = int(PROC.joinpath("self/statm").read_bytes().split()[0]) * resource.getpagesize() + room
        limit, hard = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY or limit > most:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (OSError, ValueError):  # no /proc, or a sandbox that forbids it: it is a last wall, and not the first
        return


def host_name() -> str:
    return clean(os.uname().nodename)
