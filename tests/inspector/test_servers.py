"""Servers and notebooks: real sockets of real processes, lists of sockets, and kernels of Jupyter."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.base import procfs
from gpuwatch.declared.facts import Facts, RelatedProcess
from gpuwatch.inspector import reader, servers
from gpuwatch.inspector.servers import Sockets, find_server
from tests.base.test_programs import KERNEL as CONNECTION
from tests.base.test_programs import PYTHON
from tests.declared.tables import Case, cases
from tests.support.process import ME, ROOT, fixture_process, sharing, stat_line

needs_root = pytest.mark.skipif(not ROOT, reason="a process of another user needs root")

LISTENS = """
import socket
listener = socket.socket()
for port in {ports}:
    try:
        listener.bind(("127.0.0.1", port))
        break
    except OSError:
        continue
listener.listen()
os.set_inheritable(listener.fileno(), True)
os.write(1, b"%d\\n" % listener.getsockname()[1])
"""
"""As `first`: listen on the first of these ports that is free, and print which it is."""

CHOSEN = LISTENS.format(ports="range(21000, 32000, 7)")
BY_CHANCE = LISTENS.format(ports="[0]")


def reason(pid: int) -> str:
    """Why a real process is taken for a server."""
    return find_server(reader.read(pid), Sockets())


CHILD = """
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only its parent says that all is ready
    listener.close()
    keep()
os.write(1, b"%d\\n" % child)
"""


@pytest.mark.slow
def test_a_process_that_listens_and_its_worker_that_holds_no_socket() -> None:
    with sharing("serve.py", first=CHOSEN + CHILD) as process:
        port, child = process.said
        assert reason(process.pid) == reason(int(child)) == f"listens on port {port}"


@pytest.mark.slow
@needs_root
def test_a_process_of_another_user_that_listens() -> None:
    with sharing("train.py", first=CHOSEN + f"drop({ME})") as process:
        assert reason(process.pid) == f"listens on port {process.said[0]}"


@pytest.mark.slow
def test_a_port_by_chance_is_not_one_that_was_chosen() -> None:
    with sharing("train.py", first=BY_CHANCE) as process:
        assert int(process.said[0]) in Sockets().ephemeral()
        assert reason(process.pid) == ""


@pytest.mark.slow
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_whom_a_process_is_connected_to(family: socket.AddressFamily) -> None:
    """Neither who listens nor who only talks to itself is connected to anybody; who only connects is no server."""
    host = "127.0.0.1" if family is socket.AF_INET else "::1"
    try:
        here = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with here:
        port = here.getsockname()[1]
        with socket.create_connection((host, port)), here.accept()[0]:
            assert not Sockets().peer(os.getpid()).endswith(f":{port}")
        first = f"import socket\nmine = socket.create_connection({(host, port)!r})"
        with sharing("train.py", first=first) as process:
            shown = f"{host}:{port}" if family is socket.AF_INET else f"[{host}]:{port}"
            assert Sockets().peer(process.pid) == shown
            assert reason(process.pid) == ""


@pytest.mark.slow
@needs_root
def test_a_process_with_a_network_of_its_own() -> None:
    first = f"import ctypes\nctypes.CDLL(None).unshare(0x40000000)\n{CHOSEN}".replace("127.0.0.1", "0.0.0.0")
    with sharing("train.py", first=first) as process:
        if (procfs.PROC / str(process.pid) / "ns/net").readlink() == (procfs.PROC / "self/ns/net").readlink():
            pytest.skip("no network namespace may be made here")
        sockets = Sockets()
        assert sockets.listening(os.getpid()).keys().isdisjoint(sockets.inodes([process.pid]))
        assert find_server(reader.read(process.pid), sockets) == f"listens on port {process.said[0]}"


FORK = CHILD.replace("    listener.close()\n", "")


@pytest.mark.slow
def test_a_notebook_and_what_it_forks_are_no_server() -> None:
    with sharing("-m", "ipykernel_launcher", "-f", "kernel-1.json", first=CHOSEN + FORK) as process:
        assert Sockets().inodes([int(process.said[1])])
        assert reason(process.pid) == ""
        # A fork has the kernel's own command line; what was exec'ed from it has another.
        forked = reader.read(int(process.said[1]))
        other = Facts(pid=forked.pid, argv=("python", "train.py"), environ={}, ancestors=forked.ancestors)
        assert find_server(other, Sockets()) == ""


HEAD = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(port: int, inode: int, state: str = "0A") -> bytes:
    """One line of /proc/net/tcp, as docs.kernel.org has it (networking/proc_net_tcp)."""
    text = f"   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000"
    return f"{text}  1000        0 {inode} 1\n".encode()


def machine(proc: Path, *links: str, tcp: bytes = b"", tcp6: bytes = b"", pid: int = 7) -> Sockets:
    """Process 7 with these open files, in a network namespace with these sockets."""
    (proc / f"{pid}/fd").mkdir(parents=True)
    (proc / f"{pid}/net").mkdir()
    for number, link in enumerate(links):
        (proc / f"{pid}/fd/{number}").symlink_to(link)
    (proc / f"{pid}/net/tcp").write_bytes(HEAD + tcp)
    (proc / f"{pid}/net/tcp6").write_bytes(HEAD + tcp6)
    return Sockets(proc)


@cases("inspector/servers")
def test_servers_by_their_ancestors_and_their_ports(tmp_path: Path, case: Case) -> None:
    """The front end is above who holds the GPU; what a page or a notebook starts is its own.

    An engine of vLLM's without a front end above it is a script's, or what is left of a server that has ended. Of ports
    neither debugpy's nor torchrun's own count, nor where ranks and workers meet, nor those that the kernel hands out,
    but for gRPC's and one that somebody typed.
    """
    ancestors = tuple(RelatedProcess(pid=3, argv=tuple(line.split(" "))) for line in case.get("above", ()))
    facts = Facts(pid=7, argv=tuple(case["argv"]), environ=case.get("environ", {}), ancestors=ancestors)
    sockets = Sockets(Path("/nonexistent"))
    if "port" in case:
        sockets = machine(tmp_path, "/dev/nvidia0", "socket:[41]", tcp=row(case["port"], 41))
    assert find_server(facts, sockets) == case["server"]


def test_the_machine_says_which_ports_it_hands_out(tmp_path: Path) -> None:
    sockets = machine(tmp_path, "socket:[41]", tcp=row(8000, 41))
    assert sockets.ephemeral() == range(32768, 61000)
    folder = tmp_path / "sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("1024\t65535\n")
    assert find_server(Facts(pid=7, argv=("python",)), sockets) == ""
    (folder / "ip_local_port_range").write_text("x\n")
    assert sockets.ephemeral() == range(32768, 61000)


def test_the_lowest_of_several_ports_is_named(tmp_path: Path) -> None:
    tcp = row(9000, 41) + row(80, 99) + row(22, 42, "01") + row(1, 45)
    sockets = machine(tmp_path, *(f"socket:[{inode}]" for inode in (41, 42, 43, 44)), tcp=tcp, tcp6=row(8001, 44))
    assert find_server(Facts(pid=7, argv=("python", "x.py")), sockets) == "listens on port 8001"


def test_the_search_is_bounded(tmp_path: Path) -> None:
    links = (f"socket:[{number}]" for number in range(20))
    sockets = machine(tmp_path, *links, tcp=b"".join(row(80, n) for n in range(20_000)))
    assert len(sockets.inodes([7], most=5)) == 5
    assert 0 < len(sockets.listening(7)) < 20_000
    assert sockets.inodes([8]) == set()
    assert sockets.listening(8) == {}


@given(st.binary(max_size=300))
def test_no_list_of_sockets_breaks_anything(raw: bytes) -> None:
    found = servers.parse_connections(HEAD + raw + b"\n" + row(80, 5))
    assert found[-1].local == (socket.inet_aton("127.0.0.1"), 80)
    assert all(0 <= one.local[1] <= 0xFFFF for one in found)


@given(
    st.lists(st.text(max_size=12), max_size=4),
    st.lists(st.lists(st.sampled_from(["python", "-m", "-c", "", "vllm", "serve", "ray::", "\x00", "x"])), max_size=3),
    st.dictionaries(st.sampled_from(servers._RENDEZVOUS), st.text(max_size=20), max_size=3),
)
def test_no_command_line_breaks_anything(argv: list[str], above: list[list[str]], environ: dict[str, str]) -> None:
    ancestors = tuple(RelatedProcess(pid=3, argv=tuple(line), environ=environ) for line in above)
    facts = Facts(pid=2**22 + 1, argv=tuple(argv), ancestors=ancestors, environ=environ)
    assert find_server(facts, Sockets(Path("/nonexistent"))).isprintable()
    servers.rendezvous_ports(facts)


KERNEL = (PYTHON, "-m", "ipykernel_launcher", "-f", CONNECTION)


def test_a_kernel_under_papermill_is_not_left(tmp_path: Path) -> None:
    fixture_process(tmp_path, 5, stat_line(ppid=4).replace(b" 1 1 ", b" 5 5 "))
    line = [
        RelatedProcess(pid=5, argv=KERNEL, environ={"JPY_PARENT_PID": "3"}),
        RelatedProcess(pid=4, argv=("sh", "-c")),
        RelatedProcess(pid=3),
    ]
    for pid in (4, 3):
        fixture_process(tmp_path, pid, stat_line())
    found = servers.read_notebook(line, proc=tmp_path)
    assert found is not None
    assert (found.left, found.server) == (False, None)
