"""What a container is called by those who made it: its name, and the pod that it belongs to.

Only what is ours to read is asked: the command line of Podman's monitor, the files in which Docker and Podman keep
their state, and the sockets of both, over which nothing but one `GET /containers/ID/json` is sent. Formats:

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

from gpuwatch import procfs
from gpuwatch.inspector import files
from gpuwatch.inspector.cgroups import Held
from gpuwatch.inspector.credentials import acting_as
from gpuwatch.text import clean

PATIENCE = 0.5
"""Seconds for one answer over a socket."""

FRESH = 60.0
"""Seconds for which an answer is remembered, also that there is none; a silent socket is left alone as long."""

MOST = 1024
"""Containers that are remembered."""

LONGEST = 80
"""Characters of a name."""

_LARGEST_STATE = 4 << 20
"""Bytes; the list of a thousand containers has 1 MiB."""

_LARGEST_ANSWER = 1 << 20
_LARGEST_LINE = 64 << 10
_ROOT = procfs.Owner(0, 0, ())

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Known(NamedTuple):
    """What is known of a container; all of it clean, and empty where it is not known."""

    name: str = ""
    pod: str = ""
    """`namespace/name`."""


def _home(uid: int) -> Path | None:
    try:
        return Path(pwd.getpwuid(uid).pw_dir)
    except KeyError:  # nobody of that number: a container's own user
        return None


class Roots(msgspec.Struct, frozen=True, kw_only=True):
    """Where runtimes keep what they know. In a home and below `run_user` are those of people without root."""

    docker: Path = Path("/var/lib/docker/containers")
    docker_socket: Path = Path("/run/docker.sock")
    storage: Path = Path("/var/lib/containers/storage")
    podman_socket: Path = Path("/run/podman/podman.sock")
    run_user: Path = Path("/run/user")
    home: Callable[[int], Path | None] = _home


class _Config(msgspec.Struct):
    labels: dict[str, str] | None = msgspec.field(name="Labels", default=None)


class _Inspected(msgspec.Struct):
    """What Docker says of a container, on disk and over its socket."""

    name: str = msgspec.field(name="Name", default="")
    config: _Config | None = msgspec.field(name="Config", default=None)


class _Stored(msgspec.Struct):
    """One container in a list of containers/storage."""

    id: str = ""
    names: list[str] | None = None


class Names:
    """Finds out what containers are called, and remembers it: each is asked for once a minute at most."""

    def __init__(self, roots: Roots | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._roots = roots or Roots()
        self._clock = clock
        self._found: dict[Held, tuple[float, Known]] = {}
        self._silent: dict[Path, float] = {}
        """Until when a socket is not asked again."""

    def of(self, held: Held, pid: int, uid: int | None, *, proc: Path) -> Known:
        """Return what a container is called that a process is in; never raises.

        `uid` is whose it is where it is not root's: of a rootless runtime.
        """
        if not held.id:
            return Known(clean(held.name, LONGEST))
        now = self._clock()
        when, known = self._found.get(held, (float("-inf"), Known()))
        if now - when < FRESH:
            return known
        known = next((known for known in self._answers(held, pid, uid, proc) if known is not None), Known())
        self._found.pop(held, None)
        self._found[held] = now, known
        while len(self._found) > MOST:
            del self._found[next(iter(self._found))]
        return known

    def _answers(self, held: Held, pid: int, uid: int | None, proc: Path) -> Iterator[Known | None]:
        """Ask one after the other, what is cheapest and disturbs nobody first.

        To connect to a socket may start the daemon behind it (socket activation), which is running where a container of
        Docker's is; Podman needs none, so that its socket comes last.
        """
        owners = [owner for owner in (_owner(uid), _ROOT) if owner is not None and os.geteuid() in (0, owner.uid)]
        roots, ident = self._roots, held.id
        if held.runtime == "podman":
            yield _of_monitor(pid, ident, proc)
        if held.runtime in ("podman", "cri-o"):
            for owner in owners:
                yield _of_storage(self._home(owner, "containers/storage", roots.storage), ident, owner)
        if held.runtime == "docker":
            # Everybody may try root's socket: who is in the group `docker` may use it.
            for owner in [*(one for one in owners if one.uid), _ROOT]:
                if not owner.uid:
                    yield _of_docker(roots.docker, ident)
                yield self._of_socket(self._socket(owner, "docker.sock", roots.docker_socket), ident, owner)
        if held.runtime == "podman":
            for owner in owners:
                yield self._of_socket(self._socket(owner, "podman/podman.sock", roots.podman_socket), ident, owner)

    def _home(self, owner: procfs.Owner, path: str, roots: Path) -> Path | None:
        home = self._roots.home(owner.uid) if owner.uid else None
        return (home / ".local/share" / path if home else None) if owner.uid else roots

    def _socket(self, owner: procfs.Owner, path: str, roots: Path) -> Path:
        return self._roots.run_user / str(owner.uid) / path if owner.uid else roots

    def _of_socket(self, path: Path, ident: str, owner: procfs.Owner) -> Known | None:
        if self._clock() < self._silent.get(path, float("-inf")):
            return None
        try:
            answer = _ask(path, ident, owner)
        except OSError:  # nobody there, not ours to ask, or too slow: not worth trying for each of its containers
            self._silent[path] = self._clock() + FRESH
            return None
        return _inspected(answer)


def _owner(uid: int | None) -> procfs.Owner | None:
    """Return the rights of somebody by the number alone; None for root, and for nobody."""
    if not uid:
        return None
    try:
        return procfs.Owner(uid, pwd.getpwuid(uid).pw_gid, ())
    except KeyError:
        return procfs.Owner(uid, uid, ())


# -- who knows -----------------------------------------------------------------------------------------------------


def _of_monitor(pid: int, ident: str, proc: Path) -> Known | None:
    """Read the name off the command line of Podman's monitor, which everybody may read."""
    for above in procfs.ancestors(pid, proc):
        try:
            if procfs.read_stat(above, proc).comm != b"conmon":
                continue
            words = files.decode_environ(procfs.read_file(above, "cmdline", proc, _LARGEST_LINE)).split("\0")
        except (OSError, ValueError):  # it has gone
            continue
        if ident in words:
            for place, word in enumerate(words):
                if word in ("-n", "--name"):
                    return _named("".join(words[place + 1 : place + 2]))
                if word.startswith("--name="):
                    return _named(word.removeprefix("--name="))
    return None


def _of_docker(folder: Path, ident: str) -> Known | None:
    return _inspected(_read(folder / ident / "config.v2.json", _ROOT))


def _of_storage(folder: Path | None, ident: str, owner: procfs.Owner) -> Known | None:
    for name in ("containers.json", "volatile-containers.json") if folder else ():
        raw = _read(Path(str(folder)) / "overlay-containers" / name, owner)
        try:
            stored = msgspec.json.decode(raw, type=list[_Stored]) if raw else []
        except (msgspec.MsgspecError, ValueError, RecursionError):  # another format: then it tells us nothing
            continue
        for one in stored:
            if one.id == ident and one.names:
                return _named(one.names[0])
    return None


def _inspected(raw: bytes) -> Known | None:
    try:
        found = msgspec.json.decode(raw, type=_Inspected) if raw else _Inspected()
    except (msgspec.MsgspecError, ValueError, RecursionError):  # another format: then it tells us nothing
        return None
    known = _named(found.name.removeprefix("/"))
    labels = (found.config and found.config.labels) or {}
    pod, space = labels.get("io.kubernetes.pod.name", ""), labels.get("io.kubernetes.pod.namespace", "")
    if known is not None and pod:
        pod = f"{space}/{pod}" if space else pod
        return Known(clean(labels.get("io.kubernetes.container.name", known.name), LONGEST), clean(pod, 2 * LONGEST))
    return known


def _named(name: str) -> Known | None:
    """Take a name, and the kubelet's apart."""
    parts = name.split("_")
    if parts[0] == "k8s" and len(parts) == 6:
        return Known(clean(parts[1], LONGEST), clean(f"{parts[3]}/{parts[2]}", 2 * LONGEST))
    return Known(clean(name, LONGEST)) if name else None


# -- how it is asked -----------------------------------------------------------------------------------------------


def _read(path: Path, owner: procfs.Owner) -> bytes:
    """Read a file of somebody's with no more than their rights; empty where that cannot be."""
    try:
        with acting_as(owner):
            return files.ordinary(os.open(path, _LOOK), _LARGEST_STATE, likely=False).data
    except OSError:  # not there, not ours to see, a link, too large
        return b""


def _ask(path: Path, ident: str, owner: procfs.Owner) -> bytes:
    """Ask the daemon behind a socket for one container; empty where it knows none. Raises OSError."""
    end = time.monotonic() + PATIENCE
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with acting_as(owner):
            place = os.open(path, _LOOK)
            try:
                seen = os.fstat(place)
                if not stat.S_ISSOCK(seen.st_mode) or seen.st_uid not in (0, owner.uid, os.geteuid()):
                    raise files.Unsuitable(f"no socket of root's or of uid {owner.uid}")
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
