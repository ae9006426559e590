"""On which TCP ports a process listens, and whom it is connected to, by its open files and the kernel's list of those.

Sockets of Unix are not looked at: multiprocessing, CUDA's MPS and PyTorch's loaders listen on them in every training.

The kernel walks its whole table of connections for /proc/net/tcp: 9 ms where there was hardly one. Asked over netlink
for what listens it takes 0.1 ms; that tells of our own network namespace alone, so a container's is read from /proc.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MOST_FILES = 4096
"""Open files that are looked at, of one process and those above it: 10 ms."""

LARGEST = 1 << 20
"""Bytes of a list of sockets; listening ones stand first in it (docs.kernel.org, networking/proc_net_tcp)."""

_CHUNK = 64 << 10
_LISTENS = b"0A"
_SOCK_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
"""NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR."""

_ESTABLISHED, _LISTEN = 1, 10
"""TCP_ESTABLISHED, TCP_LISTEN: include/net/tcp_states.h."""

_PATIENCE = 0.5
_MAPPED = bytes(10) + b"\xff\xff"
_SOCKET = re.compile(r"socket:\[(\d+)\]")

_EPHEMERAL = (32768, 60999)
"""What the kernel has where it is not told otherwise: ip_local_port_range in docs.kernel.org, networking/ip-sysctl."""


class _Socket(NamedTuple):
    """One socket of the kernel's list; the addresses are as they are sent."""

    inode: int
    local: tuple[bytes, int]
    remote: tuple[bytes, int]


def sockets(
    pids: Iterable[int], proc: Path, most: int = MOST_FILES, known: dict[int, frozenset[int]] | None = None
) -> set[int]:
    """Give the inodes of all sockets that processes have open; those that are not ours to see have none.

    `known` is what was read of others just now, by PID: many processes are children of one. What is read is added.
    """
    found: set[int] = set()
    known = {} if known is None else known
    for pid in pids:
        if pid in known:
            found |= known[pid]
            continue
        theirs: set[int] = set()
        try:
            with os.scandir(f"{proc}/{pid}/fd") as links:
                for link in links:
                    if most <= 0:
                        return found | theirs
                    most -= 1
                    theirs.update(map(int, _SOCKET.findall(_target(link.path))))
        except OSError:  # somebody else's, or gone
            theirs = set()
        known[pid] = frozenset(theirs)
        found |= theirs
    return found


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - a Path would take twice as long
    except OSError:  # closed meanwhile
        return ""


def ports(pid: int, proc: Path) -> dict[int, int]:
    """Give the port of each TCP socket that listens in a process's network namespace, by the socket's inode."""
    theirs = _target(f"{proc}/{pid}/ns/net")
    if _is_ours(theirs):
        try:
            return {one.inode: one.local[1] for one in asked(_LISTEN)}
        except (OSError, ValueError, struct.error):  # a kernel without it, or a sandbox that forbids it
            pass
    return listed(pid, proc)


def peer(pid: int, proc: Path) -> str:
    """Give whom a process has a TCP connection to: `10.0.0.3:6379`; empty for nobody but itself, or not to be told.

    Of several, the one with the least port: that of a service that people know. Only in our own network namespace.
    The kernel walks its whole table for it, which takes ms.
    """
    held = sockets([pid], proc)
    if not held or not _is_ours(_target(f"{proc}/{pid}/ns/net")):
        return ""
    try:
        theirs = [one for one in asked(_ESTABLISHED) if one.inode in held]
    except (OSError, ValueError, struct.error):  # a kernel without it, or a sandbox that forbids it
        return ""
    own = {one.local for one in theirs}
    found = sorted((one.remote for one in theirs if one.remote not in own), key=lambda end: (end[1], end[0]))
    return _shown(*found[0]) if found else ""


def _shown(address: bytes, port: int) -> str:
    mapped = len(address) == 16 and address.startswith(_MAPPED)  # an IPv4 address on an IPv6 socket
    if mapped or len(address) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, address[-4:])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"


def _is_ours(namespace: str) -> bool:
    """Say whether a network namespace is our own."""
    return bool(namespace) and namespace == _target("/proc/self/ns/net")


def asked(state: int) -> list[_Socket]:
    """Ask the kernel for the TCP sockets of a state in our own network namespace.

    Raises OSError, ValueError, struct.error. Source: sock_diag(7), netlink(7): `struct nlmsghdr` and
    `inet_diag_req_v2`, `inet_diag_msg`.
    """
    found: list[_Socket] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(_PATIENCE)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 0, 1 << state)
            kernel.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, family, 0) + request)
            left = LARGEST
            while left > 0 and _take(answer := kernel.recv(_CHUNK), found):
                left -= len(answer)
    return found


def _take(answer: bytes, found: list[_Socket]) -> bool:
    """Take the sockets of one datagram; say whether there is more to come."""
    place = 0
    while place + 16 <= len(answer):
        length, kind = struct.unpack_from("=IH", answer, place)
        if kind in (_DONE, _ERROR) or length < 16:
            if kind != _DONE:
                raise ValueError("the kernel knows no such question")
            return False
        ports = struct.unpack_from("!HH", answer, place + 16 + 4)
        (inode,) = struct.unpack_from("=I", answer, place + 16 + 68)
        size = 4 if answer[place + 16] == socket.AF_INET else 16
        ends = [answer[start : start + size] for start in (place + 16 + 8, place + 16 + 24)]
        found.append(_Socket(inode, (ends[0], ports[0]), (ends[1], ports[1])))
        place += (length + 3) & ~3
    return True


def listed(pid: int, proc: Path) -> dict[int, int]:
    """Read what listens where a process is from the lists in /proc/PID/net."""
    found: dict[int, int] = {}
    for name in ("tcp", "tcp6"):
        try:
            found |= _listening(os.open(f"{proc}/{pid}/net/{name}", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # a kernel without it, or gone
            continue
    return found


def _listening(descriptor: int) -> dict[int, int]:
    """Read a list up to its first socket that does not listen, and close it."""
    found: dict[int, int] = {}
    rest, left = b"", LARGEST
    try:
        while left > 0 and (part := os.read(descriptor, _CHUNK)):
            left -= len(part)
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                fields = line.split()
                if len(fields) < 10 or fields[0] == b"sl":
                    continue
                if fields[3] != _LISTENS:
                    return found
                port, inode = fields[1].rpartition(b":")[2], fields[9]
                if inode.isdigit() and re.fullmatch(rb"[0-9A-Fa-f]{4}", port):
                    found[int(inode)] = int(port, 16)
    finally:
        os.close(descriptor)
    return found


def ephemeral(proc: Path) -> range:
    """Give the ports that the kernel hands out to who does not care which: what NCCL and Gloo listen on."""
    try:
        low, high = (proc / "sys/net/ipv4/ip_local_port_range").read_bytes()[:64].split()
        return range(int(low), int(high) + 1)
    except (OSError, ValueError):  # a kernel that does not say
        return range(_EPHEMERAL[0], _EPHEMERAL[1] + 1)
