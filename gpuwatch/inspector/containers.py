"""Containers of processes, their names, and those of the pods that they belong to.

Podman and CRI-O have both on the command line of a container's monitor, which everybody may read. Docker is asked
over its socket, with the rights of the container's owner only, and by nothing but `GET /containers/ID/json`. Formats:

- `conmon … -c ID … -n NAME`, one for each container and its ancestor: containers/podman, libpod/oci_conmon_common.go,
  and cri-o/cri-o, internal/oci/runtime_oci.go
- `GET /containers/ID/json`: docs.docker.com, Engine API, ContainerInspect
- `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT`: the kubelet's names, of parts that have no `_` in them
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from gpuwatch.base import files, procfs
from gpuwatch.base.text import clean
from gpuwatch.inspector import cgroups
from gpuwatch.inspector.cgroups import ContainerId
from gpuwatch.inspector.credentials import Owner, acting_as
from gpuwatch.inspector.files import decode_environ

PATIENCE = 0.5
"""Seconds for one answer over a socket."""

FRESH = 60.0
"""Seconds for which an answer is remembered, even an empty one; a socket that did not answer is skipped as long."""

MOST = 1024
"""Containers that are remembered, at most."""

LONGEST = 80
"""Characters of a name."""

_LARGEST_ANSWER = 1 << 20
_LARGEST_LINE = 64 << 10
_MOST_ABOVE = 64
"""Processes from one upwards among which a monitor is looked for, at most."""
_ROOT = Owner(0, 0, ())

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_ID = re.compile(r"[0-9a-f]{64}")

_LARGEST_MOUNTS = 256 << 10
"""Bytes of /proc/PID/mountinfo, at most; a container's has 5 KiB, that of a host with 100 containers 100 KiB."""

_MOUNTED_FILES = frozenset({"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"})
"""Files that runtimes mount into each container from their own folders."""

_STATE = r"/([a-z0-9]+-)?containers/([0-9a-f]{64})/(?:userdata/)?[^/]+$"
"""Files of a container: Docker's in `containers`, Podman's in `overlay-containers` and the like (storage/store.go)."""

_POD_STATE = r"/pods/([0-9a-f-]{32,36})/etc-hosts$"
_OCTAL = r"\\([0-7]{3})"


Monitors: TypeAlias = "dict[int, tuple[int, tuple[ContainerId, ContainerName | None] | None]]"
"""Parent of each process that was read in a batch of questions, and the container that the process monitors."""


def find_container_id(pid: int, cgroup: str, proc: Path, known: Monitors | None = None) -> ContainerId | None:
    """Return the container of a process: by its cgroup, else by the monitor above it, else by its mounts.

    A rootless container may have no cgroup of its own: Podman's has none with cgroups of version 1, and none with
    `--cgroups=disabled`. Its monitor has the uid of the user, its processes may have another. `known` caches the
    ancestors of all processes.
    """
    found = cgroups.parse_container(cgroup) or next((found for found, _ in _read_monitors(pid, proc, known)), None)
    return found or read_mounts(pid, cgroup, proc)[0]


class ContainerName(NamedTuple):
    """Name of a container and its pod: clean, and empty where unknown."""

    name: str = ""
    pod: str = ""
    """`namespace/name`."""


class _Config(msgspec.Struct):
    labels: dict[str, str] | None = msgspec.field(name="Labels", default=None)


class _Inspected(msgspec.Struct):
    """Container as Docker describes it."""

    name: str = msgspec.field(name="Name", default="")
    config: _Config | None = msgspec.field(name="Config", default=None)


class ContainerNames:
    """Cache of the names of containers: each is looked up once a minute at most."""

    def __init__(
        self,
        docker_socket: Path = Path("/run/docker.sock"),
        run_user: Path = Path("/run/user"),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`docker_socket` is root's; a user's is `docker.sock` in the user's folder below `run_user`."""
        self._docker_socket, self._run_user = docker_socket, run_user
        self._clock = clock
        self._names: dict[ContainerId, tuple[float, ContainerName]] = {}
        self._silent: dict[Path, float] = {}
        """Time until which each socket that did not answer is skipped."""

    def find(self, container: ContainerId, pid: int, uid: int | None, *, proc: Path) -> ContainerName:
        """Return the name of the container of a process; never raises.

        `uid` is the owner of a rootless runtime.
        """
        if not container.id:
            return ContainerName(clean(container.name, LONGEST))
        now = self._clock()
        when, name = self._names.get(container, (float("-inf"), ContainerName()))
        if now - when < FRESH:
            return name
        name = self._look_up(container, pid, uid, proc) or ContainerName()
        self._names.pop(container, None)
        self._names[container] = now, name
        while len(self._names) > MOST:
            del self._names[next(iter(self._names))]
        return name

    def _look_up(self, container: ContainerId, pid: int, uid: int | None, proc: Path) -> ContainerName | None:
        if container.runtime in ("podman", "cri-o"):
            return next((name for found, name in _read_monitors(pid, proc) if found.id == container.id), None)
        if container.runtime != "docker":
            return None
        found, owner = None, _find_owner(uid)
        if owner is not None and os.geteuid() in (0, owner.uid):
            found = self._ask_socket(self._run_user / str(owner.uid) / "docker.sock", container.id, owner)
        # Anybody may try root's socket: the members of the group `docker` may use it.
        return found or self._ask_socket(self._docker_socket, container.id, _ROOT)

    def _ask_socket(self, path: Path, ident: str, owner: Owner) -> ContainerName | None:
        if self._clock() < self._silent.get(path, float("-inf")):
            return None
        try:
            answer = _ask(path, ident, owner)
        except OSError:  # nobody listens, no permission, or too slow: not asked about other containers either
            self._silent[path] = self._clock() + FRESH
            return None
        return _parse_inspected(answer)


def _find_owner(uid: int | None) -> Owner | None:
    """Return a user with the primary group; None for root, and for an unknown uid."""
    if not uid:
        return None
    try:
        return Owner(uid, pwd.getpwuid(uid).pw_gid, ())
    except KeyError:
        return Owner(uid, uid, ())


# -- sources -------------------------------------------------------------------------------------------------------


def _read_monitors(
    pid: int, proc: Path, known: Monitors | None = None
) -> Iterator[tuple[ContainerId, ContainerName | None]]:
    """Yield the containers on the command lines of the monitors above a process, the innermost first."""
    known = {} if known is None else known
    for place in range(_MOST_ABOVE):
        if pid not in known:
            stat = procfs.find_stat(pid, proc) if pid else None  # 0 is above the first process
            if stat is None:
                return
            known[pid] = stat.ppid, _read_monitored(pid, proc) if stat.comm == b"conmon" else None
        pid, monitored = known[pid]
        if place and monitored:
            yield monitored


def _read_monitored(pid: int, proc: Path) -> tuple[ContainerId, ContainerName | None] | None:
    """Return the container on the command line of a monitor; None where there is none, or it has ended."""
    try:
        line = decode_environ(procfs.read_file(pid, "cmdline", proc, _LARGEST_LINE))
    except OSError:
        return None
    options = dict(reversed([*pairwise(re.split("[\0=]", line))]))  # `--name=NAME`, too; the first one counts
    ident = options.get("-c") or options.get("--cid", "")
    name = parse_name(options.get("-n") or options.get("--name", ""))
    return (ContainerId("cri-o" if name and name.pod else "podman", ident), name) if _ID.fullmatch(ident) else None


def read_mounts(pid: int, cgroup: str, proc: Path) -> tuple[ContainerId | None, str]:
    """Return the container and the uid of the pod whose files are mounted for a process.

    Mounts are used where the cgroup does not name a container: inside a cgroup namespace the path is `/`, rootless
    Docker may create no cgroups, and Enroot's containers stay in Slurm's cgroup. Source: proc_pid_mountinfo(5).
    """
    container: ContainerId | None = None
    pod = ""
    if len(cgroup) > 1 and not cgroups.is_below_runtime(cgroup) and cgroups.parse_slurm(cgroup) is None:
        return container, pod
    try:
        raw = procfs.read_file(pid, "mountinfo", proc, _LARGEST_MOUNTS)
    except OSError:  # it has ended
        return container, pod
    for line in reversed(decode_environ(raw).splitlines()):
        fields = line.split(" ", 5)
        if len(fields) < 6:
            continue
        source, target = (re.sub(_OCTAL, lambda found: chr(int(found[1], 8) & 0xFF), field) for field in fields[3:5])
        if target in _MOUNTED_FILES and (found := re.search(_STATE, source)):
            container = ContainerId("podman" if found[1] else "docker", found[2])
        elif target == "/.lock" and source.endswith("/.lock"):  # Enroot's src/runtime.sh; below a folder of its name
            container = ContainerId("enroot", "", source.removesuffix("/.lock").rpartition("/")[2])
        elif target == "/etc/hosts" and (found := re.search(_POD_STATE, source)):
            pod = found[1]
    return container, pod


def _parse_inspected(raw: bytes) -> ContainerName | None:
    try:
        found = msgspec.json.decode(raw, type=_Inspected) if raw else _Inspected()
    except (ValueError, RecursionError):  # another format
        return None
    name = parse_name(found.name.removeprefix("/"))
    labels = (found.config and found.config.labels) or {}
    pod, space = labels.get("io.kubernetes.pod.name", ""), labels.get("io.kubernetes.pod.namespace", "")
    if name is not None and pod:
        pod = f"{space}/{pod}" if space else pod
        return ContainerName(
            clean(labels.get("io.kubernetes.container.name", name.name), LONGEST), clean(pod, 2 * LONGEST)
        )
    return name


def parse_name(name: str) -> ContainerName | None:
    """Return a container's name, and the pod where the kubelet gave the name; None for an empty one."""
    parts = name.split("_")
    if parts[0] == "k8s" and len(parts) == 6:
        return ContainerName(clean(parts[1], LONGEST), clean(f"{parts[3]}/{parts[2]}", 2 * LONGEST))
    return ContainerName(clean(name, LONGEST)) if name else None


def _ask(path: Path, ident: str, owner: Owner) -> bytes:
    """Return the answer of the daemon behind a socket about one container; empty for none. Raises OSError."""
    import socket  # for machines with containers

    end = time.monotonic() + PATIENCE
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with acting_as(owner):
            place = os.open(path, _LOOK)
            try:
                seen = os.fstat(place)
                if not stat.S_ISSOCK(seen.st_mode) or seen.st_uid not in (0, owner.uid, os.geteuid()):
                    raise files.UnsafePathError(f"no socket that belongs to root or uid {owner.uid}")
                connection.settimeout(PATIENCE)
                connection.connect(f"/proc/self/fd/{place}")
            finally:
                os.close(place)
        connection.sendall(f"GET /containers/{ident}/json HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        answer = b""
        while len(answer) <= _LARGEST_ANSWER:
            rest = end - time.monotonic()
            if rest <= 0:
                raise TimeoutError
            connection.settimeout(rest)
            part = connection.recv(64 << 10)
            if not part:
                break
            answer += part
    head, found, body = answer.partition(b"\r\n\r\n")
    return body if found and head.split(b" ", 2)[1:2] == [b"200"] else b""
