"""Names of containers, and of the pods that they belong to.

Three sources are read, with the rights of the container's owner only: the command line of Podman's monitor, the
state files of Docker and Podman, and the sockets of both, over which only `GET /containers/ID/json` is sent. Formats:

- `conmon … -c ID … -n NAME`, one for each container and its ancestor: containers/podman, libpod/oci_conmon_common.go
- `/var/lib/docker/containers/ID/config.v2.json`, with `Name` and `Config.Labels`: moby/moby, container/container.go
- `…/storage/overlay-containers/containers.json`, and `volatile-containers.json` for those started with `--rm`: a list
  of `id` and `names`, CRI-O's too: containers/storage, containers.go
- `GET /containers/ID/json`: docs.docker.com, Engine API, ContainerInspect; Podman answers the same
- `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT`: the kubelet's names, of parts that have no `_` in them
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwatch import files, procfs
from gpuwatch.inspector.cgroups import ContainerId
from gpuwatch.inspector.credentials import Owner, acting_as
from gpuwatch.inspector.files import decode_environ
from gpuwatch.text import clean

PATIENCE = 0.5
"""Seconds for one answer over a socket."""

FRESH = 60.0
"""Seconds for which an answer is remembered, even an empty one; a socket that did not answer is skipped as long."""

MOST = 1024
"""Containers that are remembered, at most."""

LONGEST = 80
"""Characters of a name."""

_LARGEST_STATE = 4 << 20
"""Bytes of a state file, at most; the list of a thousand containers has 1 MiB."""

_LARGEST_ANSWER = 1 << 20
_LARGEST_LINE = 64 << 10
_ROOT = Owner(0, 0, ())

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class ContainerName(NamedTuple):
    """Name of a container and its pod: clean, and empty where unknown."""

    name: str = ""
    pod: str = ""
    """`namespace/name`."""


def _find_home(uid: int) -> Path | None:
    try:
        return Path(pwd.getpwuid(uid).pw_dir)
    except KeyError:  # a container's own user
        return None


class Roots(msgspec.Struct, frozen=True, kw_only=True):
    """Folders and sockets of root's runtimes; users' runtimes have theirs in their homes and below `run_user`."""

    docker: Path = Path("/var/lib/docker/containers")
    docker_socket: Path = Path("/run/docker.sock")
    storage: Path = Path("/var/lib/containers/storage")
    podman_socket: Path = Path("/run/podman/podman.sock")
    run_user: Path = Path("/run/user")
    home: Callable[[int], Path | None] = _find_home

    def of_user(self, uid: int) -> Roots:
        """Return the folders and sockets of a user's rootless runtimes."""
        run, home = self.run_user / str(uid), self.home(uid) or Path("/nonexistent")
        return msgspec.structs.replace(
            self,
            docker=Path("/nonexistent"),  # rootless Docker's state is asked for over its socket alone
            docker_socket=run / "docker.sock",
            storage=home / ".local/share/containers/storage",
            podman_socket=run / "podman/podman.sock",
        )


class _Config(msgspec.Struct):
    labels: dict[str, str] | None = msgspec.field(name="Labels", default=None)


class _Inspected(msgspec.Struct):
    """Container as Docker's state file and its socket describe it."""

    name: str = msgspec.field(name="Name", default="")
    config: _Config | None = msgspec.field(name="Config", default=None)


class _Stored(msgspec.Struct):
    """Container as a list of containers/storage describes it."""

    id: str = ""
    names: list[str] | None = None


class ContainerNames:
    """Cache of the names of containers: each is looked up once a minute at most."""

    def __init__(self, roots: Roots | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._roots = roots or Roots()
        self._clock = clock
        self._found: dict[ContainerId, tuple[float, ContainerName]] = {}
        self._silent: dict[Path, float] = {}
        """Time until which each socket that did not answer is skipped."""

    def find(self, container: ContainerId, pid: int, uid: int | None, *, proc: Path) -> ContainerName:
        """Return the name of the container of a process; never raises.

        `uid` is the owner of a rootless runtime.
        """
        if not container.id:
            return ContainerName(clean(container.name, LONGEST))
        now = self._clock()
        when, name = self._found.get(container, (float("-inf"), ContainerName()))
        if now - when < FRESH:
            return name
        name = next(filter(None, self._answers(container, pid, uid, proc)), ContainerName())
        self._found.pop(container, None)
        self._found[container] = now, name
        while len(self._found) > MOST:
            del self._found[next(iter(self._found))]
        return name

    def _answers(self, container: ContainerId, pid: int, uid: int | None, proc: Path) -> Iterator[ContainerName | None]:
        """Ask one source after the other, the cheapest first.

        A connection to a socket may start the daemon behind it (socket activation). Where Docker has
        containers its daemon runs already; Podman works without a daemon, so its socket comes last.
        """
        owners = [(owner, self._roots.of_user(owner.uid)) for owner in [_find_owner(uid)] if owner is not None]
        owners.append((_ROOT, self._roots))
        allowed = [(owner, roots) for owner, roots in owners if os.geteuid() in (0, owner.uid)]
        if container.runtime == "podman":
            yield _read_monitor(pid, container.id, proc)
        if container.runtime in ("podman", "cri-o"):
            for owner, roots in allowed:
                yield _read_storage(roots.storage, container.id, owner)
        if container.runtime == "docker":
            for owner, roots in owners:
                # Anybody may try root's socket: the members of the group `docker` may use it.
                if owner is _ROOT or (owner, roots) in allowed:
                    yield _parse_inspected(_read(roots.docker / container.id / "config.v2.json", owner))
                    yield self._ask_socket(roots.docker_socket, container.id, owner)
        if container.runtime == "podman":
            for owner, roots in allowed:
                yield self._ask_socket(roots.podman_socket, container.id, owner)

    def _ask_socket(self, path: Path, ident: str, owner: Owner) -> ContainerName | None:
        if self._clock() < self._silent.get(path, float("-inf")):
            return None
        try:
            answer = _ask(path, ident, owner)
        except OSError:  # nobody listens, not ours to ask, or too slow: left alone for the other containers, too
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


def _read_monitor(pid: int, ident: str, proc: Path) -> ContainerName | None:
    """Return the name on the command line of Podman's monitor, which everybody may read."""
    for above in procfs.find_ancestors(pid, proc):
        try:
            if procfs.read_stat(above, proc).comm != b"conmon":
                continue
            words = decode_environ(procfs.read_file(above, "cmdline", proc, _LARGEST_LINE)).split("\0")
        except (OSError, ValueError):  # it has ended
            continue
        if ident in words:
            for place, word in enumerate(words):
                if word in ("-n", "--name"):
                    return parse_name("".join(words[place + 1 : place + 2]))
                if word.startswith("--name="):
                    return parse_name(word.removeprefix("--name="))
    return None


def _read_storage(folder: Path, ident: str, owner: Owner) -> ContainerName | None:
    for name in ("containers.json", "volatile-containers.json"):
        raw = _read(folder / "overlay-containers" / name, owner)
        try:
            stored = msgspec.json.decode(raw, type=list[_Stored]) if raw else []
        except (ValueError, RecursionError):  # another format
            continue
        for one in stored:
            if one.id == ident and one.names:
                return parse_name(one.names[0])
    return None


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


# -- files and sockets ---------------------------------------------------------------------------------------------


def _read(path: Path, owner: Owner) -> bytes:
    """Return the content of a file, read with its owner's rights; empty where that is not possible."""
    try:
        with acting_as(owner):
            place = os.open(path, _LOOK)
            try:
                return files.read_ordinary(place, _LARGEST_STATE)[0]
            finally:
                os.close(place)
    except OSError:  # not there, not ours to see, a link, too large
        return b""


def _ask(path: Path, ident: str, owner: Owner) -> bytes:
    """Return the answer of the daemon behind a socket about one container; empty for none. Raises OSError."""
    end = time.monotonic() + PATIENCE
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with acting_as(owner):
            place = os.open(path, _LOOK)
            try:
                seen = os.fstat(place)
                if not stat.S_ISSOCK(seen.st_mode) or seen.st_uid not in (0, owner.uid, os.geteuid()):
                    raise files.UnsafePathError(f"no socket of root's or of uid {owner.uid}")
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
