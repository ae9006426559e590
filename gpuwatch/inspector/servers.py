"""Servers and notebooks: finds the listening ports, connections and Jupyter kernels of a process.

An idle server is not a stray, so in doubt a process counts as a server. Ports that a framework opens for itself do not
count: ports that the kernel assigned, the rendezvous of a distributed run, ports of notebooks, Ray and Dask. Nor do
Unix sockets: multiprocessing, CUDA's MPS and PyTorch's loaders listen on them in every training.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from gpuwatch.base import procfs, programs
from gpuwatch.base.programs import Role
from gpuwatch.base.text import clean, mask
from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.model.snapshot import Notebook

# -- sockets -------------------------------------------------------------------------------------------------------

MOST_FILES = 4096
"""Open files of a process and its ancestors that are examined, at most."""

LARGEST = 1 << 20
"""Bytes of a list of sockets, at most; listening sockets come first (docs.kernel.org, networking/proc_net_tcp)."""

_ESTABLISHED, _LISTEN = 1, 10
"""TCP_ESTABLISHED, TCP_LISTEN: include/net/tcp_states.h."""

_MAPPED = bytes(10) + b"\xff\xff"
_INODE = re.compile(r"socket:\[(\d+)\]")

_EPHEMERAL = range(32768, 61000)
"""Ports that the kernel assigns by default: ip_local_port_range in docs.kernel.org, networking/ip-sysctl."""

_End: TypeAlias = tuple[bytes, int]
"""Address and port of one end of a connection."""


class _Connection(NamedTuple):
    """TCP socket in the kernel's list."""

    inode: int
    state: int
    local: _End
    remote: _End


class Sockets:
    """Sockets of processes and of their network namespaces, each read once.

    One object serves a batch of processes, which often share their ancestors. The kernel walks its whole table of
    connections for one list, which takes milliseconds.
    """

    def __init__(self, proc: Path = procfs.PROC) -> None:
        self._proc = proc
        self._inodes: dict[int, frozenset[int]] = {}
        self._connections: dict[str, tuple[_Connection, ...]] = {}

    def inodes(self, pids: Iterable[int], most: int = MOST_FILES) -> set[int]:
        """Return the inodes of all sockets that processes have open, except processes that gpuwatch may not read."""
        inodes: set[int] = set()
        for pid in pids:
            if pid not in self._inodes:
                theirs: set[int] = set()
                try:
                    with os.scandir(f"{self._proc}/{pid}/fd") as links:
                        for link in links:
                            if most <= 0:
                                return inodes | theirs
                            most -= 1
                            theirs.update(map(int, _INODE.findall(_target(link.path))))
                except OSError:  # another user's, or ended
                    theirs = set()
                self._inodes[pid] = frozenset(theirs)
            inodes |= self._inodes[pid]
        return inodes

    def listening(self, pid: int) -> dict[int, int]:
        """Return the port of each TCP socket that listens in a process's network namespace, by the socket's inode."""
        return {one.inode: one.local[1] for one in self._of(pid) if one.state == _LISTEN}

    def peer(self, pid: int) -> str:
        """Return the other end of a process's TCP connection: `10.0.0.3:6379`; empty for none, and for itself.

        Of several connections the one with the lowest port: most likely it is a known service.
        """
        held = self.inodes([pid])
        theirs = [one for one in self._of(pid) if one.state == _ESTABLISHED and one.inode in held] if held else []
        own = {one.local for one in theirs}
        others = sorted((one.remote for one in theirs if one.remote not in own), key=lambda end: (end[1], end[0]))
        return _format_address(*others[0]) if others else ""

    def ephemeral(self) -> range:
        """Return the ports that the kernel assigns where a program asks for none: NCCL and Gloo use these."""
        try:
            low, high = (self._proc / "sys/net/ipv4/ip_local_port_range").read_bytes()[:64].split()
            return range(int(low), int(high) + 1)
        except (OSError, ValueError):
            return _EPHEMERAL

    def _of(self, pid: int) -> tuple[_Connection, ...]:
        namespace = _target(f"{self._proc}/{pid}/ns/net") or str(pid)
        if namespace not in self._connections:
            connections: list[_Connection] = []
            for name in ("tcp", "tcp6"):
                try:
                    connections += parse_connections(procfs.read_file(pid, f"net/{name}", self._proc, LARGEST))
                except OSError:  # a kernel without it, or the process has ended
                    continue
            self._connections[namespace] = tuple(connections)
        return self._connections[namespace]


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - a Path would take twice as long
    except OSError:  # closed meanwhile
        return ""


def parse_connections(raw: bytes) -> list[_Connection]:
    """Parse a list of sockets; lines that describe no such socket are ignored."""
    found = []
    for line in raw.split(b"\n"):
        fields = line.split()
        try:
            local, remote = _parse_end(fields[1]), _parse_end(fields[2])
            found.append(_Connection(int(fields[9]), int(fields[3], 16), local, remote))
        except (IndexError, ValueError, struct.error):  # the heading, or a line that was cut short
            continue
    return found


def _parse_end(text: bytes) -> _End:
    """Parse `0100007F:1F90`: an address in 32-bit words in this machine's byte order, and the port."""
    address, _, port = text.decode("ascii").partition(":")
    words = len(address) // 8
    if words not in (1, 4) or len(port) != 4:
        raise ValueError
    return struct.pack(f"={words}I", *struct.unpack(f">{words}I", bytes.fromhex(address))), int(port, 16)


def _format_address(address: bytes, port: int) -> str:
    from ipaddress import ip_address  # for leftovers with a connection

    mapped = address.startswith(_MAPPED)  # an IPv4 address on an IPv6 socket
    host = ip_address(address[-4:] if mapped else address)
    return f"{host}:{port}" if host.version == 4 else f"[{host}]:{port}"


# -- servers -------------------------------------------------------------------------------------------------------

_INTERNAL_PORTS = frozenset({5678, 6379, 8265, 8786, 8787, 29400, 29500})
"""Ports of debugpy, of Ray's store and dashboard, of Dask's scheduler and dashboard, and of torchrun."""

_GRPC = 50051
"""The usual port of gRPC servers, although the kernel assigns it, too."""

_RENDEZVOUS = (
    *("MASTER_PORT", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    *("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT", "COORDINATOR_ADDRESS", "TF_CONFIG"),
)
_RENDEZVOUS_FLAGS = frozenset(
    {
        *("--master-port", "--rdzv-endpoint", "--main-process-port", "--coordinator-address", "--init-method"),
        *("--dist-url", "--dist-port", "--dist-init-addr", "--nccl-port", "--ddp-port"),
    }
)
_PORT = r"(?:^|:)(\d{1,5})(?!\d)"


def find_server(facts: Facts, sockets: Sockets) -> str:
    """Return why a process counts as a server: `vLLM`, `listens on port 8000`; empty if it does not. Never raises."""
    if programs.is_internal_listener(facts.argv):
        return ""
    models = (programs.find_model_server(one.argv) for one in (facts, *facts.ancestors))
    web = (programs.find_web_server(one.argv) for one in _own_line(facts))
    return next(filter(None, models), "") or next(filter(None, web), "") or _find_by_port(facts, sockets)


def _own_line(facts: Facts) -> list[RelatedProcess]:
    """Return a process and its ancestors, up to the nearest ancestor that starts unrelated programs."""
    line = [facts, *facts.ancestors]
    return line[: next((place for place, one in enumerate(line) if place and _starts_unrelated(one.argv)), None)]


def _starts_unrelated(argv: tuple[str, ...]) -> bool:
    """Return whether a program's children may be unrelated to it: a shell, login, manager, launcher or notebook."""
    name = programs.parse_command(argv).name
    if programs.find_web_server(argv):  # also one that starts notebooks, or takes jobs from a queue
        return False
    shell = name in programs.SHELLS or name in programs.USER_SWITCHES
    return shell or programs.is_internal_listener(argv) or programs.find_role(argv) is Role.BOUNDARY


def _find_by_port(facts: Facts, sockets: Sockets) -> str:
    line = _own_line(facts)
    if any(one.argv and one.argv[0].startswith("ray::") for one in line):
        return ""  # its workers listen for each other
    held = sockets.inodes(one.pid for one in line)
    ports = sockets.listening(facts.pid) if held else {}
    held &= ports.keys()
    if not held:
        return ""
    # A fork of a notebook kernel has the kernel's sockets, which are for its notebook.
    held -= sockets.inodes(one.pid for one in facts.ancestors[len(line) - 1 : len(line)])
    never, assigned = _INTERNAL_PORTS | rendezvous_ports(facts), sockets.ephemeral()
    chosen = {_GRPC, *_parse_ports(word.rpartition("=")[2] for word in facts.argv)}
    found = {ports[inode] for inode in held} - never
    found = {port for port in found if port in chosen or port not in assigned}
    return f"listens on port {min(found)}" if found else ""


def rendezvous_ports(facts: Facts) -> set[int]:
    """Return the ports at which the ranks of a run meet, from environments and command lines."""
    texts: list[str] = []
    for process in (facts, *facts.ancestors):
        if not isinstance(process.environ, Unread):
            texts += [process.environ[name] for name in _RENDEZVOUS if name in process.environ]
        for place, word in enumerate(process.argv):
            name, equals, value = word.partition("=")
            # `--master-port`, and Hydra's `+trainer.master_port=29500`
            if f"--{name.lstrip('-+').rpartition('.')[2].replace('_', '-')}" in _RENDEZVOUS_FLAGS:
                texts.append(value if equals else "".join(process.argv[place + 1 : place + 2]))
    return _parse_ports(texts)


def _parse_ports(texts: Iterable[str]) -> set[int]:
    """Return the numbers in texts that may be a port: a whole text, or what follows the colon of an address."""
    return {int(port) for text in texts for port in re.findall(_PORT, text[:4096])}


# -- notebooks -----------------------------------------------------------------------------------------------------

_SHOWN_ID = 8
_LONGEST_PATH = 200


def leads_session(argv: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Return whether a process is a kernel for which its server created a session; its forks lead none."""
    return programs.is_kernel(argv) and _parse_pid(environ.get("JPY_PARENT_PID", "")) is not None


def _parse_pid(text: str) -> int | None:
    """Parse the PID of a server; 0 and 1 mean no server."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 and int(text) > 1 else None


def read_notebook(line: Sequence[RelatedProcess], *, proc: Path = procfs.PROC) -> Notebook | None:
    """Return the nearest kernel among a process and its ancestors (`line`); None where there is none.

    A server that starts a kernel gives it its own PID as JPY_PARENT_PID and the notebook as JPY_SESSION_NAME, and puts
    it into a session of its own. JPY_PARENT_PID is 0 or 1 where the kernel shall outlive its server. Papermill and
    nbconvert start kernels as a server does. Sources: jupyter_client/launcher.py (JPY_PARENT_PID, start_new_session),
    jupyter_server/services/sessions/sessionmanager.py, get_kernel_env (JPY_SESSION_NAME).
    """
    place = next((number for number, one in enumerate(line) if programs.is_kernel(one.argv)), None)
    if place is None:
        return None
    while place + 1 < len(line) and line[place + 1].argv == line[place].argv:
        place += 1  # only its forks have its very arguments
    kernel = line[place]
    environ = {} if isinstance(kernel.environ, Unread) else kernel.environ
    server, left = _find_server_of(line[place:], _parse_pid(environ.get("JPY_PARENT_PID", "")), proc)
    return Notebook(
        kernel=clean((programs.find_kernel_id(kernel.argv) or environ.get("KERNEL_ID", ""))[:_SHOWN_ID]),
        path=mask(environ.get("JPY_SESSION_NAME", ""), _LONGEST_PATH),
        server=server,
        left=left,
    )


def _find_server_of(line: Sequence[RelatedProcess], pid: int | None, proc: Path) -> tuple[int | None, bool]:
    """Return the PID of a kernel's server among its ancestors, and whether the server has certainly ended."""
    kernel, *above = line
    server = next((one.pid for one in above if programs.is_notebook_server(one.argv)), None)
    if server is not None or pid is None:
        return server, False
    try:
        stat = procfs.read_stat(kernel.pid, proc)
        if stat.session not in (kernel.pid, 0):  # a fork of a kernel that has ended, which says nothing of the server
            return None, False
        if any(procfs.read_own_pid(one.pid, proc)[0] == pid for one in above):
            return None, False  # Papermill, or a gateway's script: it runs, and is no server
        ended = procfs.read_own_pid(kernel.pid, proc)[1] and procfs.is_alive(pid, proc) is False
        return None, ended or procfs.is_adopted(kernel.pid, stat, proc)
    except (OSError, ValueError):  # one of them has just ended, or is hidden
        return None, False
