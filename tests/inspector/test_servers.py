"""Servers and notebooks: real sockets of real processes, lists of sockets, and kernels of Jupyter."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch import procfs
from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import reader, servers
from gpuwatch.inspector.servers import Sockets, find_server
from gpuwatch.model import Notebook
from tests.support.families import Member, family
from tests.support.gpuholder import ME, ROOT
from tests.support.sharer import Sharing, sharing
from tests.test_procfs import fixture_process, stat_line
from tests.test_programs import KERNEL as CONNECTION
from tests.test_programs import PYTHON

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


@pytest.mark.parametrize(
    ("argv", "above", "expected"),
    [
        (("VLLM::Worker_TP0",), ("VLLM::EngineCore", "python /venv/bin/vllm serve x", "bash"), "vLLM"),
        (("VLLM::EngineCore",), ("python generate.py", "bash"), ""),
        (("VLLM::EngineCore",), (), ""),
        (("python", "backend.py"), ("bash run.sh", "local-ai run"), "LocalAI"),
        (("python", "-c", "from multiprocessing.spawn import spawn_main"), ("uvicorn app:app", "zsh"), "uvicorn"),
        (("python", "train.py"), ("sh -c python", "streamlit run page.py"), ""),
        (("python", "train.py"), ("python -m torch.distributed.run x", "gunicorn app"), ""),
        (("python", "-m", "ipykernel_launcher"), ("python /venv/bin/vllm serve x",), ""),
        (("python", "train.py"), ("python -m ipykernel_launcher -f x", "hypercorn hub:app"), ""),
    ],
)
def test_servers_by_their_ancestors(argv: tuple[str, ...], above: tuple[str, ...], expected: str) -> None:
    """The front end is above who holds the card; what a page or a notebook starts is its own.

    An engine of vLLM's without a front end above it is a script's, or what is left of a server that has ended.
    """
    ancestors = tuple(RelatedProcess(pid=3 - place, argv=tuple(line.split(" "))) for place, line in enumerate(above))
    facts = Facts(pid=7, argv=argv, ancestors=ancestors)
    assert find_server(facts, Sockets(Path("/nonexistent"))) == expected


# -- ports of real processes ----------------------------------------------------------------------------------------


def reason(pid: int) -> str:
    """Why a real process is taken for a server."""
    return find_server(reader.read(pid), Sockets())


@pytest.fixture(scope="module")
def listener() -> Iterator[Sharing]:
    """A process that listens on a port that somebody chose, and a child that holds no socket."""
    with sharing("serve.py", first=CHOSEN + CHILD) as process:
        yield process


CHILD = """
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only its parent says that all is ready
    listener.close()
    keep()
os.write(1, b"%d\\n" % child)
"""


@pytest.mark.slow
def test_a_process_that_listens_and_its_worker(listener: Sharing) -> None:
    port, child = listener.said
    assert reason(listener.pid) == reason(int(child)) == f"listens on port {port}"


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
def test_a_server_of_ipv6() -> None:
    first = CHOSEN.replace("socket.socket()", "socket.socket(socket.AF_INET6)").replace("127.0.0.1", "::1")
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with sharing("train.py", first=first) as process:
        assert reason(process.pid) == f"listens on port {process.said[0]}"


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (("train.py",), {"MASTER_PORT": "{port}"}),
        (("train.py",), {"JAX_COORDINATOR_ADDRESS": "gpu01:{port}"}),
        (("train.py",), {"TF_CONFIG": '{{"cluster": {{"worker": ["a:1", "b:{port}"]}}, "task": {{"index": 0}}}}'}),
        (("train.py", "--master_port", "{port}"), {}),
        (("train.py", "--rdzv-endpoint=gpu01:{port}"), {}),
        (("train.py", "+trainer.master_port={port}"), {}),
    ],
)
def test_where_the_ranks_of_a_run_meet_is_no_servers_port(
    listener: Sharing, argv: tuple[str, ...], environ: dict[str, str]
) -> None:
    port, plain = listener.said[0], reader.read(listener.pid)
    facts = Facts(
        pid=listener.pid,
        argv=("python", *(word.format(port=port) for word in argv)),
        environ={name: value.format(port=port) for name, value in environ.items()},
        ancestors=plain.ancestors,
    )
    assert find_server(facts, Sockets()) == ""
    unread = Facts(pid=listener.pid, argv=("python",), environ=Unread.OVERWRITTEN, ancestors=plain.ancestors)
    assert find_server(unread, Sockets()) == f"listens on port {port}"


# -- ports by a list of sockets -------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("port", "words", "listens"),
    [
        *((port, "", True) for port in (8000, 80, 31999, 50051, 61000)),
        *((port, "", False) for port in (5678, 29500, 32768, 60999)),
        *((40000, words, True) for words in ("--port 40000", "--port=40000", "--bind 0.0.0.0:40000")),
        (40000, "--seed 4000", False),
        (40000, "--init-method tcp://127.0.0.1:40000", False),
        (40000, "--dist_url=tcp://127.0.0.1:40000", False),
    ],
)
def test_ports_that_count(tmp_path: Path, port: int, words: str, listens: bool) -> None:
    """Not debugpy's nor torchrun's own, nor those that the kernel hands out, but for gRPC's and a typed one."""
    sockets = machine(tmp_path, "/dev/nvidia0", "socket:[41]", tcp=row(port, 41))
    facts = Facts(pid=7, argv=("python", "train.py", *words.split()), environ={})
    assert find_server(facts, sockets) == (f"listens on port {port}" if listens else "")


def test_the_machine_says_which_ports_it_hands_out(tmp_path: Path) -> None:
    sockets = machine(tmp_path, "socket:[41]", tcp=row(8000, 41))
    assert sockets.ephemeral() == range(32768, 61000)
    folder = tmp_path / "sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("1024\t65535\n")
    assert find_server(Facts(pid=7, argv=("python",)), sockets) == ""
    (folder / "ip_local_port_range").write_text("x\n")
    assert sockets.ephemeral() == range(32768, 61000)


def test_rays_and_dasks_workers_listen_for_each_other(tmp_path: Path) -> None:
    sockets = machine(tmp_path, "socket:[41]", tcp=row(10002, 41))
    for argv in (("ray::Trainer.fit",), ("ray::IDLE",), ("python", "/venv/bin/dask-worker", "x"), ("tensorboard",)):
        assert find_server(Facts(pid=7, argv=argv, environ={}), sockets) == ""


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


# -- notebooks -----------------------------------------------------------------------------------------------------

KERNEL = (PYTHON, "-m", "ipykernel_launcher", "-f", CONNECTION)
LAB = (PYTHON, "/opt/conda/bin/jupyter-lab", "--no-browser")


def kernel(*children: Member, server: object = 0, **environ: str) -> Member:
    """A kernel as Jupyter starts it."""
    given = {"JPY_SESSION_NAME": "/home/ada/lab/Untitled 1.ipynb", "JPY_PARENT_PID": str(server), **environ}
    return Member("kernel", KERNEL, given, children, leads=True)


@pytest.mark.slow
def test_a_notebook_and_what_it_started() -> None:
    shell = Member("train", (PYTHON, "train.py"))
    loader = Member("loader", forks=True)
    with family(Member("lab", LAB, children=(kernel(shell, loader),))) as tree:
        places = [tree.around(name) for name in ("kernel", "train", "loader")]
        key = tree.identity("kernel")
        server = tree.pids["lab"]
    path = "/home/ada/lab/Untitled 1.ipynb"
    assert {place.notebook for place in places} == {Notebook(kernel="3f9a1c22", path=path, server=server)}
    assert {(place.run.key, place.run.name) for place in places if place.run} == {(key, "Untitled 1.ipynb")}
    assert [place.run.worker_of for place in places if place.run] == [None, None, tree.pids["kernel"]]
    assert places[0].where == "notebook Untitled 1.ipynb"


@pytest.mark.slow
def test_a_kernel_whose_server_was_killed_is_left() -> None:
    with family() as dead:
        gone = dead.pids["root"]
    with family(Member("lab", LAB, children=(kernel(Member("loader", forks=True), server=gone),), leads=True)) as tree:
        assert tree.around("kernel").notebook == tree.around("loader").notebook
        tree.end("lab")
        left = [tree.around(name).notebook for name in ("kernel", "loader")]
        tree.end("kernel")
        alone = tree.around("loader")
    assert [(one.left, one.server) for one in left if one] == [(True, None)] * 2
    assert alone.notebook is not None
    assert not alone.notebook.left
    assert alone.run is not None
    assert alone.run.orphaned


@pytest.mark.slow
@pytest.mark.parametrize("server", ["0", "1", "", "abc"])
def test_a_kernel_that_was_meant_to_outlive_its_starter_is_not_left(server: str) -> None:
    with family(Member("starter", (PYTHON, "-m", "x"), children=(kernel(server=server),))) as tree:
        tree.end("starter")
        found = tree.around("kernel").notebook
    assert found is not None
    assert (found.left, found.server) == (False, None)


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
