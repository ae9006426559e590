"""What is taken for a server that waits for requests: real sockets of real processes, and command lines as they are.

Command lines are those of each project's documentation; titles are vLLM's (set_process_title), gunicorn's and Ray's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch import procfs
from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import reader, servers
from gpuwatch.inspector import servers as listening
from tests.support.gpuholder import ME, ROOT
from tests.support.sharer import sharing

needs_root = pytest.mark.skipif(not ROOT, reason="a process of another user needs root")
NOWHERE = Path("/nonexistent")

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


def named(*argv: str, above: tuple[str, ...] = ()) -> str:
    """Why a process of this command line is taken for a server, below ancestors of those."""
    ancestors = tuple(RelatedProcess(pid=3 - place, argv=tuple(line.split(" "))) for place, line in enumerate(above))
    return servers.server(Facts(pid=7, argv=argv, ancestors=ancestors), proc=NOWHERE)


# -- by name -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/opt/venv/bin/python3 /opt/venv/bin/vllm serve meta-llama/Llama-3.1-8B --port 8000", "vLLM"),
        ("vllm serve", "vLLM"),
        ("python3 -m vllm.entrypoints.openai.api_server --model x", "vLLM"),
        ("VLLM::APIServer_0", "vLLM"),
        ("python3 -m sglang.launch_server --model-path x", "SGLang"),
        ("tritonserver --model-repository=/models", "Triton"),
        ("/opt/tritonserver/backends/python/triton_python_backend_stub /models/a/1/model.py", "Triton"),
        ("/usr/local/bin/ollama serve", "Ollama"),
        ("/usr/local/bin/ollama runner --ollama-engine --model /models/blobs/sha256-1 --port 41813", "Ollama"),
        ("/usr/local/lib/ollama/runners/cuda_v12_avx/ollama_llama_server runner --model x", "Ollama"),
        ("text-generation-launcher --model-id x", "TGI"),
        ("/opt/conda/bin/python3.10 /opt/conda/bin/text-generation-server serve x --rank 0", "TGI"),
        ("./llama-server -m model.gguf", "llama.cpp"),
        ("python -m llama_cpp.server --model x", "llama.cpp"),
        ("python koboldcpp.py --model x", "KoboldCpp"),
        ("lmdeploy serve api_server x", "LMDeploy"),
        ("trtllm-serve x", "TensorRT-LLM"),
        ("tensorflow_model_server --rest_api_port=8501", "TensorFlow Serving"),
        ("java -cp x org.pytorch.serve.ModelServer", "TorchServe"),
        ("python /venv/ts/model_service_worker.py --sock-type unix", "TorchServe"),
        ("python -m fastchat.serve.model_worker --model-path x", "FastChat"),
        ("bentoml serve service:svc", "BentoML"),
        ("infinity_emb v2 --model-id x", "Infinity"),
        ("local-ai run", "LocalAI"),
        ("python3 -m dynamo.vllm --model x", "Dynamo"),
        ("python /home/ada/ComfyUI/main.py --listen", "ComfyUI"),
        ("python -u /srv/stable-diffusion-webui/launch.py", "Stable Diffusion web UI"),
        ("ray::ServeReplica:default:Embed", "Ray Serve"),
        ("ray::RayWorkerWrapper.execute_method", "model server on Ray"),
        ("python3 /venv/bin/uvicorn app:app", "uvicorn"),
        ("gunicorn: worker [app]", "gunicorn"),
        ("python3 /venv/bin/celery -A project worker", "celery"),
        ("[celeryd: celery@host:MainProcess] -active- (worker)", "celery"),
        ("python /venv/bin/rq worker gpu", "rq"),
        ("streamlit run demo.py", "streamlit"),
        ("fastapi run main.py", "fastapi"),
        ("python -m http.server 8000", "http.server"),
        *(
            (line, "")
            for line in (
                *("python train.py", "python -m train", "", "-bash", "python", "python -c pass", "vllm bench latency"),
                *("vllm", "ollama run llama3", "ollama pull x", "lmdeploy convert", "bentoml build", "flask shell"),
                *("python serve.py", "VLLM::EngineCore", "VLLM::Worker_TP0", "ray::IDLE", "ray::Trainer.fit"),
                "python -m torch.distributed.run --nproc_per_node 8 train.py",
                "python -m ipykernel_launcher -f /run/user/1000/jupyter/kernel-1.json",
                "python train.py vllm serve",
                "tensorboard --logdir runs",
            )
        ),
    ],
)
def test_servers_by_their_command_line(line: str, expected: str) -> None:
    """Program, script or module, and what it is told to do."""
    assert named(*line.split(" ")) == expected


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
    assert named(*argv, above=above) == expected


# -- by port -------------------------------------------------------------------------------------------------------


def reason(pid: int) -> str:
    """Why a real process is taken for a server."""
    return servers.server(reader.read(pid), proc=procfs.PROC)


def test_a_real_process_that_listens() -> None:
    """On a port that somebody has chosen."""
    with sharing("train.py", first=CHOSEN) as process:
        assert reason(process.pid) == f"listens on port {process.said[0]}"


@needs_root
def test_a_real_process_of_another_user_that_listens() -> None:
    """Root sees whose it is; another user does not see its files."""
    with sharing("train.py", first=CHOSEN + f"drop({ME})") as process:
        assert reason(process.pid) == f"listens on port {process.said[0]}"


def test_a_port_by_chance_is_not_one_that_was_chosen() -> None:
    """NCCL, Gloo and debuggers listen in every training."""
    with sharing("train.py", first=BY_CHANCE) as process:
        assert int(process.said[0]) in listening.ephemeral(procfs.PROC)
        assert reason(process.pid) == ""


def test_a_server_of_ipv6() -> None:
    """It stands in a list of its own."""
    first = CHOSEN.replace("socket.socket()", "socket.socket(socket.AF_INET6)").replace("127.0.0.1", "::1")
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with sharing("train.py", first=first) as process:
        assert reason(process.pid) == f"listens on port {process.said[0]}"


def test_a_process_that_only_connects_is_none() -> None:
    """A socket is not a server's by being there."""
    with socket.create_server(("127.0.0.1", 0)) as here:
        first = f"import socket\nmine = socket.create_connection({here.getsockname()!r})"
        with sharing("train.py", first=first) as process:
            assert listening.read_sockets([process.pid], procfs.PROC)
            assert reason(process.pid) == ""


def test_the_kernel_answers_what_its_list_says() -> None:
    """Asked over netlink, of IPv4 and IPv6."""
    with socket.create_server(("127.0.0.1", 0)) as here:
        asked = {one.inode: one.local[1] for one in listening.asked(listening._LISTEN)}
        assert asked[os.fstat(here.fileno()).st_ino] == here.getsockname()[1]
        listed = listening.listed(os.getpid(), procfs.PROC)
        assert listed[os.fstat(here.fileno()).st_ino] == here.getsockname()[1]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_whom_a_process_is_connected_to(family: socket.AddressFamily) -> None:
    """Neither who listens nor who only talks to itself is connected to anybody."""
    host = "127.0.0.1" if family is socket.AF_INET else "::1"
    try:
        here = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with here:
        port = here.getsockname()[1]
        with socket.create_connection((host, port)), here.accept()[0]:
            assert not any(listening.peer(os.getpid(), procfs.PROC).endswith(f":{port}") for _ in range(2))
        first = f"import socket\nmine = socket.create_connection({(host, port)!r})"
        with sharing("train.py", first=first) as process:
            shown = f"{host}:{port}" if family is socket.AF_INET else f"[{host}]:{port}"
            assert listening.peer(process.pid, procfs.PROC) == shown


@needs_root
def test_a_process_with_a_network_of_its_own() -> None:
    """A container's ports are read where it sees them, not where we do."""
    first = f"import ctypes\nctypes.CDLL(None).unshare(0x40000000)\n{CHOSEN}".replace("127.0.0.1", "0.0.0.0")
    with sharing("train.py", first=first) as process:
        if (procfs.PROC / str(process.pid) / "ns/net").readlink() == (procfs.PROC / "self/ns/net").readlink():
            pytest.skip("no network namespace may be made here")
        assert reason(process.pid) == f"listens on port {process.said[0]}"
        assert int(process.said[0]) not in {one.local[1] for one in listening.asked(listening._LISTEN)}


CHILD = """
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only its parent says that all is ready
    listener.close()
    keep()
os.write(1, b"%d\\n" % child)
"""


def test_a_worker_of_a_process_that_listens() -> None:
    """The front end listens, the worker holds the card."""
    with sharing("serve.py", first=CHOSEN + CHILD) as process:
        port, child = process.said
        assert reason(int(child)) == f"listens on port {port}"


FORK = CHILD.replace("    listener.close()\n", "")


def test_a_notebook_and_what_it_forks_are_no_server() -> None:
    """The kernel's sockets are for its notebook, also those that its loaders have of it."""
    with sharing("-m", "ipykernel_launcher", "-f", "kernel-1.json", first=CHOSEN + FORK) as process:
        assert listening.read_sockets([int(process.said[1])], procfs.PROC)
        assert reason(process.pid) == ""
        # A fork has the kernel's own command line; what was exec'ed from it has another.
        forked = reader.read(int(process.said[1]))
        other = Facts(pid=forked.pid, argv=("python", "train.py"), environ={}, ancestors=forked.ancestors)
        assert servers.server(other, proc=procfs.PROC) == ""


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
def test_where_the_ranks_of_a_run_meet_is_no_servers_port(argv: tuple[str, ...], environ: dict[str, str]) -> None:
    """It is named in the environment or on the command line."""
    with sharing("train.py", first=CHOSEN) as process:
        port = process.said[0]
        plain = reader.read(process.pid)
        assert servers.server(plain, proc=procfs.PROC) == f"listens on port {port}"
        facts = Facts(
            pid=process.pid,
            argv=("python", *(word.format(port=port) for word in argv)),
            environ={name: value.format(port=port) for name, value in environ.items()},
            ancestors=plain.ancestors,
        )
        assert servers.server(facts, proc=procfs.PROC) == ""
        unread = Facts(pid=process.pid, argv=("python",), environ=Unread.OVERWRITTEN, ancestors=plain.ancestors)
        assert servers.server(unread, proc=procfs.PROC) == f"listens on port {port}"


# -- by fixture ----------------------------------------------------------------------------------------------------

HEAD = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(port: int, inode: int, state: str = "0A") -> bytes:
    """One line of /proc/net/tcp, as docs.kernel.org has it (networking/proc_net_tcp)."""
    text = f"   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000"
    return f"{text}  1000        0 {inode} 1\n".encode()


def machine(proc: Path, *links: str, tcp: bytes = b"", tcp6: bytes = b"", pid: int = 7) -> Path:
    """Process 7 with these open files, in a network namespace with these sockets."""
    (proc / f"{pid}/fd").mkdir(parents=True)
    (proc / f"{pid}/net").mkdir()
    for number, link in enumerate(links):
        (proc / f"{pid}/fd/{number}").symlink_to(link)
    (proc / f"{pid}/net/tcp").write_bytes(HEAD + tcp)
    (proc / f"{pid}/net/tcp6").write_bytes(HEAD + tcp6)
    return proc


@pytest.mark.parametrize(
    ("port", "listens"),
    [
        (8000, True),
        (80, True),
        (31999, True),
        (5678, False),
        (29500, False),
        (32768, False),
        (50051, True),
        (60999, False),
        (61000, True),
    ],
)
def test_ports_that_count(tmp_path: Path, port: int, listens: bool) -> None:
    """Not debugpy's nor torchrun's own, nor those that the kernel hands out, but for gRPC's."""
    machine(tmp_path, "/dev/nvidia0", "socket:[41]", tcp=row(port, 41))
    facts = Facts(pid=7, argv=("python", "train.py"), environ={})
    assert servers.server(facts, proc=tmp_path) == (f"listens on port {port}" if listens else "")


def test_the_machine_says_which_ports_it_hands_out(tmp_path: Path) -> None:
    """Where it does not, Linux's own range is meant."""
    assert listening.ephemeral(tmp_path) == range(32768, 61000)
    folder = tmp_path / "sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("1024\t65535\n")
    machine(tmp_path, "socket:[41]", tcp=row(8000, 41))
    assert servers.server(Facts(pid=7, argv=("python",)), proc=tmp_path) == ""
    (folder / "ip_local_port_range").write_text("x\n")
    assert listening.ephemeral(tmp_path) == range(32768, 61000)


def test_rays_and_dasks_workers_listen_for_each_other(tmp_path: Path) -> None:
    """On ports that a cluster was told to use."""
    machine(tmp_path, "socket:[41]", tcp=row(10002, 41))
    for argv in (("ray::Trainer.fit",), ("ray::IDLE",), ("python", "/venv/bin/dask-worker", "x"), ("tensorboard",)):
        assert servers.server(Facts(pid=7, argv=argv, environ={}), proc=tmp_path) == ""


def test_the_lowest_of_several_ports_is_named(tmp_path: Path) -> None:
    """And those of others, and what no longer listens, are not."""
    tcp = row(9000, 41) + row(80, 99) + row(22, 42, "01") + row(1, 43)
    machine(tmp_path, "socket:[41]", "socket:[42]", "socket:[43]", "socket:[44]", tcp=tcp, tcp6=row(8001, 44))
    assert servers.server(Facts(pid=7, argv=("python", "x.py")), proc=tmp_path) == "listens on port 8001"


def test_the_search_is_bounded(tmp_path: Path) -> None:
    """By open files, and by the list's bytes: a busy machine has a hundred thousand sockets."""
    machine(tmp_path, *(f"socket:[{number}]" for number in range(20)), tcp=b"".join(row(80, n) for n in range(20_000)))
    assert len(listening.read_sockets([7], tmp_path, most=5)) == 5
    assert 0 < len(listening.ports(7, tmp_path)) < 20_000
    assert listening.read_sockets([8], tmp_path) == set()
    assert listening.ports(8, tmp_path) == {}


@given(st.binary(max_size=300))
def test_no_list_of_sockets_breaks_anything(raw: bytes) -> None:
    """A line that is no socket's is passed over."""
    reading, writing = os.pipe()
    os.write(writing, HEAD + raw + b"\n" + row(80, 5))
    os.close(writing)
    found = listening._listening(reading)
    assert all(0 <= port <= 0xFFFF for port in found.values())


@given(st.binary(max_size=300))
def test_no_answer_of_the_kernels_breaks_anything(raw: bytes) -> None:
    """One that is cut short or of another kind is one of three errors, for which the list is read."""
    with contextlib.suppress(ValueError, struct.error):
        listening._take(raw, [])


@given(
    st.lists(st.text(max_size=12), max_size=4),
    st.lists(st.lists(st.sampled_from(["python", "-m", "-c", "", "vllm", "serve", "ray::", "\x00", "x"])), max_size=3),
    st.dictionaries(st.sampled_from(servers._RENDEZVOUS), st.text(max_size=20), max_size=3),
)
def test_no_command_line_breaks_anything(argv: list[str], above: list[list[str]], environ: dict[str, str]) -> None:
    """Whatever people call things, the answer is one of our own words."""
    ancestors = tuple(RelatedProcess(pid=3, argv=tuple(line), environ=environ) for line in above)
    facts = Facts(pid=2**22 + 1, argv=tuple(argv), ancestors=ancestors, environ=environ)
    assert servers.server(facts, proc=NOWHERE).isprintable()
    servers._rendezvous(facts)
