"""Servers and notebooks: listening ports, connections and Jupyter kernels of a process.

Sockets of Unix are not looked at: multiprocessing, CUDA's MPS and PyTorch's loaders listen on them in every training.

The kernel walks its whole table of connections for /proc/net/tcp: 9 ms where there was hardly one. Asked over netlink
for what listens it takes 0.1 ms; that tells of our own network namespace alone, so a container's is read from /proc.

Such a one is no stray for being idle, so this rather calls one too many a server. What a framework opens for itself is
for no requests: ports that nobody chose, the rendezvous of a distributed run, a notebook's kernel, Ray's and Dask's.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpuwatch import procfs, programs
from gpuwatch.declared.facts import Facts, RelatedProcess, Unread
from gpuwatch.inspector import program
from gpuwatch.inspector.program import How, Part
from gpuwatch.model import Notebook
from gpuwatch.text import clean

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


def read_sockets(
    pids: Iterable[int], proc: Path, most: int = MOST_FILES, known: dict[int, frozenset[int]] | None = None
) -> set[int]:
    """Return the inodes of all sockets that processes have open; those that are not ours to see have none.

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
    """Return the port of each TCP socket that listens in a process's network namespace, by the socket's inode."""
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
    held = read_sockets([pid], proc)
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
    """Return whether a network namespace is our own."""
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
    """Return the ports that the kernel hands out to who does not care which: what NCCL and Gloo listen on."""
    try:
        low, high = (proc / "sys/net/ipv4/ip_local_port_range").read_bytes()[:64].split()
        return range(int(low), int(high) + 1)
    except (OSError, ValueError):  # a kernel that does not say
        return range(_EPHEMERAL[0], _EPHEMERAL[1] + 1)


_CONNECTION = re.compile(r"(?:^|[/=])kernel-(?:v\d+-?)?([0-9A-Za-z][0-9A-Za-z-]{3,63})\.json$")
"""The file that tells a kernel its ports: `kernel-<uuid>.json`, VS Code's `kernel-v2-2107….json`."""

_KERNELS = frozenset({"ipykernel_launcher", "ipykernel", "colab_kernel_launcher"})
_KERNEL_SCRIPTS = frozenset({"ipykernel_launcher.py", "launch_ipykernel.py", "colab_kernel_launcher.py"})

_START_OF_ID = 8
_LONGEST_PATH = 200


@functools.lru_cache(maxsize=128)
def is_kernel(argv: tuple[str, ...]) -> bool:
    """Return whether a command line is that of a kernel; of another language it shows by the file of its ports."""
    found = program.find_outermost_program(argv)
    if found is not None and found.how is How.MODULE and found.text in _KERNELS:
        return True
    if found is not None and found.how is How.FILE and found.text.rpartition("/")[2] in _KERNEL_SCRIPTS:
        return True
    return "--existing" not in argv and len(argv) > 1 and any(_CONNECTION.search(word) for word in argv[1:])


def is_led(argv: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Give whether a kernel with this command line and environment leads a session of its own: its server saw to that.

    Who shows both and leads none is a fork of one.
    """
    return is_kernel(argv) and _pid(environ.get("JPY_PARENT_PID", "")) is not None


def _pid(text: str) -> int | None:
    """Read the PID of a server; 0 and 1 stand for none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 and int(text) > 1 else None


def read_notebook(line: Sequence[RelatedProcess], *, proc: Path = procfs.PROC) -> Notebook | None:
    """Tell of the nearest kernel on the way up from a process (`line`, itself first); None where there is none.

    A server that starts a kernel gives it its own PID as JPY_PARENT_PID and the notebook as JPY_SESSION_NAME, and puts
    it into a session of its own. 0 and 1 are given by those who want it to outlive them. Papermill and nbconvert do
    the same as a server: while they run nothing is left. Sources: jupyter_client/launcher.py (JPY_PARENT_PID,
    start_new_session), jupyter_server/services/sessions/sessionmanager.py, get_kernel_env (JPY_SESSION_NAME).
    """
    place = next((number for number, kin in enumerate(line) if is_kernel(kin.argv)), None)
    if place is None:
        return None
    while place + 1 < len(line) and line[place + 1].argv == line[place].argv:
        place += 1  # only its forks have its very arguments
    kernel = line[place]
    environ = {} if isinstance(kernel.environ, Unread) else kernel.environ
    server, left = _server(line[place:], _pid(environ.get("JPY_PARENT_PID", "")), proc)
    return Notebook(
        kernel=_start_of_id(kernel.argv) or clean(environ.get("KERNEL_ID", "")[:_START_OF_ID]),
        path=clean(environ.get("JPY_SESSION_NAME", ""), _LONGEST_PATH),
        server=server,
        left=left,
    )


def _start_of_id(argv: Sequence[str]) -> str:
    found = next((match for word in argv if (match := _CONNECTION.search(word))), None)
    return found[1][:_START_OF_ID] if found else ""


def _server(line: Sequence[RelatedProcess], pid: int | None, proc: Path) -> tuple[int | None, bool]:
    """Find the server of a kernel (the first of `line`) above it, and say whether it is known to be gone."""
    kernel, *above = line
    server = next((kin.pid for kin in above if program.is_jupyter(kin.argv)), None)
    if server is not None:
        return server, False
    if pid is None:
        return None, False
    try:
        stat = procfs.read_stat(kernel.pid, proc)
        if stat.session not in (kernel.pid, 0):  # a fork of a kernel that is gone: that says nothing of the server
            return None, False
        if any(procfs.own_number(kin.pid, proc)[0] == pid for kin in above):
            return None, False  # Papermill, a gateway's script: there, and no server
        ours = procfs.own_number(kernel.pid, proc)[1]
        gone = ours and not _exists(pid, proc)
        return None, procfs.adopted(kernel.pid, stat, proc) if not gone else True
    except (OSError, ValueError):  # it, or one of those above, has just gone or is hidden
        return None, False


def _exists(pid: int, proc: Path) -> bool:
    """Return whether there is such a process; one that is hidden may be there."""
    try:
        return procfs.read_stat(pid, proc).state not in procfs.DEAD
    except procfs.GONE:
        return False
    except (OSError, ValueError):
        return True


_ANY = frozenset[str]()
"""Whatever it is told to do, it serves."""

_SERVE = frozenset({"serve", "start", "run"})

_MODELS: Mapping[str, tuple[str, frozenset[str]]] = {
    "vllm": ("vLLM", frozenset({"serve"})),
    "vllm.entrypoints.cli.main": ("vLLM", frozenset({"serve"})),
    "vllm.entrypoints.openai.api_server": ("vLLM", _ANY),
    "vllm.entrypoints.api_server": ("vLLM", _ANY),
    "sglang": ("SGLang", frozenset({"serve"})),
    "sglang.launch_server": ("SGLang", _ANY),
    "tritonserver": ("Triton", _ANY),
    "triton_python_backend_stub": ("Triton", _ANY),
    "ollama": ("Ollama", frozenset({"serve", "runner"})),
    "ollama_llama_server": ("Ollama", _ANY),
    "text-generation-launcher": ("TGI", _ANY),
    "text-generation-router": ("TGI", _ANY),
    "text-generation-server": ("TGI", _SERVE),
    "text-embeddings-router": ("TEI", _ANY),
    "llama-server": ("llama.cpp", _ANY),
    "llama_cpp.server": ("llama.cpp", _ANY),
    "koboldcpp": ("KoboldCpp", _ANY),
    "lmdeploy": ("LMDeploy", frozenset({"serve"})),
    "lightllm.server.api_server": ("LightLLM", _ANY),
    "aphrodite": ("Aphrodite", _SERVE),
    "mlc_llm": ("MLC LLM", _SERVE),
    "trtllm-serve": ("TensorRT-LLM", _ANY),
    "tensorrt_llm.commands.serve": ("TensorRT-LLM", _ANY),
    "tensorflow_model_server": ("TensorFlow Serving", _ANY),
    "torchserve": ("TorchServe", _ANY),
    "model_service_worker": ("TorchServe", _ANY),
    "bentoml": ("BentoML", frozenset({"serve", "start", "serve-http", "serve-grpc"})),
    "openllm": ("OpenLLM", _SERVE),
    "mlserver": ("MLServer", _SERVE),
    "huggingfaceserver": ("KServe", _ANY),
    "infinity_emb": ("Infinity", _ANY),
    "local-ai": ("LocalAI", _ANY),
    "localai": ("LocalAI", _ANY),
    "whisper-server": ("whisper.cpp", _ANY),
    "wyoming-faster-whisper": ("Whisper", _ANY),
    "wyoming_faster_whisper": ("Whisper", _ANY),
    "faster-whisper-server": ("Whisper", _ANY),
    "speaches": ("Whisper", _ANY),
    "xinference": ("Xinference", _ANY),
    "xinference-local": ("Xinference", _ANY),
    "xinference-worker": ("Xinference", _ANY),
    "xinference-supervisor": ("Xinference", _ANY),
    "tabby": ("Tabby", frozenset({"serve"})),
    "serve": ("Ray Serve", frozenset({"run"})),
    **dict.fromkeys(("dynamo.vllm", "dynamo.sglang", "dynamo.trtllm"), ("Dynamo", _ANY)),
}
"""Servers of models, by program, script without `.py`, or module; and the first word behind it by which it serves.

What such a one starts belongs to it, through shells too."""

_MODULES = ("fastchat.serve.", "lmdeploy.serve.", "_bentoml_impl.", "bentoml_cli.worker", "text_generation_server.")
_OF_MODULE = ("FastChat", "LMDeploy", "BentoML", "BentoML", "TGI")

_PLACES = {
    "comfyui": "ComfyUI",
    "stable-diffusion-webui": "Stable Diffusion web UI",
    "text-generation-webui": "text-generation-webui",
    "tabbyapi": "TabbyAPI",
}
"""Servers that are known by the folder of their script alone: `ComfyUI/main.py`."""

_WEB: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        ("uvicorn", "gunicorn", "hypercorn", "waitress-serve", "daphne", "granian", "uwsgi", "gradio"), _ANY
    ),
    **dict.fromkeys(("waitress", "http.server", "voila"), _ANY),
    **dict.fromkeys(("streamlit", "chainlit", "flask"), frozenset({"run"})),
    "fastapi": frozenset({"run", "dev"}),
    **dict.fromkeys(("panel", "bokeh"), frozenset({"serve"})),
    **dict.fromkeys(("celery", "dramatiq", "arq", "huey_consumer", "taskiq", "rqworker", "rq", "faktory_worker"), _ANY),
}
"""Servers of anything, and those that wait for what comes in a queue. What they fork is theirs; what stands behind a
shell may be a training that a page started."""

_PLUMBING = frozenset(
    {
        *("ipykernel_launcher", "ipykernel", "colab_kernel_launcher", "jupyter", "notebook", "jupyterhub-singleuser"),
        *("tensorboard", "tensorboard.main", "wandb", "wandb-core", "wandb-service", "debugpy.adapter", "visdom"),
        *("dask", "dask-worker", "dask-cuda-worker", "dask-scheduler", "dask_cuda", "distributed.cli.dask_worker"),
        *(
            "raylet",
            "gcs_server",
            "ray",
            "default_worker",
            "torchrun",
            "torch.distributed.run",
            "torch.distributed.launch",
        ),
        *("accelerate", "accelerate.commands.launch", "deepspeed", "deepspeed.launcher.launch", "horovodrun"),
        *("mpirun", "mpiexec", "orterun", "prterun", "orted", "prted", "hydra_pmi_proxy", "srun"),
    }
)
"""Programs whose ports are for themselves: kernels of notebooks, what shows curves, launchers of runs."""

_PORTS = frozenset({5678, 6379, 8265, 8786, 8787, 29400, 29500})
"""debugpy's, Ray's store and dashboard, Dask's scheduler and dashboard, and torchrun's own two."""

_GRPC = 50051
"""The port that gRPC's servers take by habit, among those that the kernel hands out."""

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
_PORT = re.compile(r"(?:^|:)(\d{1,5})(?!\d)")

_TITLES = (
    (re.compile(r".*::(?:APIServer|ApiServer)"), "vLLM"),  # vllm/utils, set_process_title; the prefix may be chosen
    (re.compile(r"ray::(?:ServeReplica|ProxyActor|HTTPProxyActor)"), "Ray Serve"),
    (
        re.compile(r"ray::RayWorkerWrapper"),
        "model server on Ray",
    ),  # of vLLM and of LMDeploy, whose front end is elsewhere
    (re.compile(r"gunicorn: "), "gunicorn"),
    (re.compile(r"\[celeryd:"), "celery"),  # celery/platforms.py, set_mp_process_title
)
"""What processes call themselves. `VLLM::EngineCore` is none: a script that has called vLLM has one as well."""


def server(facts: Facts, *, proc: Path, sockets: dict[int, frozenset[int]] | None = None) -> str:
    """Give why a process is taken for a server: `vLLM`, `listens on port 8000`; empty for none, or where nothing tells.

    `sockets` is what was read of other processes just now, see `listening.sockets`. Never raises for what processes
    have written.
    """
    if _words(facts.argv)[0] in _PLUMBING:
        return ""
    return _by_name(facts) or _by_port(facts, proc, sockets)


# -- by name -------------------------------------------------------------------------------------------------------


def _by_name(facts: Facts) -> str:
    line = [facts.argv, *(one.argv for one in facts.ancestors)]
    found = next((label for argv in line if (label := _model(argv))), "")
    if found:
        return found
    for argv in _of_the_run(line):
        name, rest = _words(argv)
        if name in _WEB and _serves(_WEB[name], rest):
            return name
    return ""


@functools.lru_cache(maxsize=128)
def _model(argv: tuple[str, ...]) -> str:
    """Name the server of models that a command line is; empty for none."""
    title = argv[0] if argv else ""
    for pattern, label in _TITLES:
        if pattern.match(title):
            return label
    name, rest = _words(argv)
    if name in _MODELS:
        label, verbs = _MODELS[name]
        return label if _serves(verbs, rest) else ""
    for prefix, label in zip(_MODULES, _OF_MODULE, strict=True):
        if name.startswith(prefix):
            return label
    if name == "java" and "org.pytorch.serve.ModelServer" in argv:
        return "TorchServe"
    folders = _script(argv).lower().split("/")[:-1]
    return next((label for folder, label in _PLACES.items() if folder in folders), "")


def _serves(verbs: frozenset[str], rest: Sequence[str]) -> bool:
    return not verbs or bool(rest and rest[0] in verbs)


@functools.lru_cache(maxsize=128)
def _words(argv: tuple[str, ...]) -> tuple[str, Sequence[str]]:
    """Return what runs (program, script without `.py`, or module) and its arguments."""
    if not argv:
        return "", ()
    if not program.is_python(argv[0]):
        name = argv[0].lstrip("-").split(" ", 1)[0].rstrip(":")
        return name.rpartition("/")[2].removesuffix(".py"), argv[1:]
    found, rest = program.find_started_program(argv[1:])
    if found is None or found.how is program.How.CODE:
        return "", ()
    if found.how is program.How.MODULE:
        return found.text.removesuffix(".__main__"), rest
    return found.text.rpartition("/")[2].removesuffix(".py"), rest


def _script(argv: Sequence[str]) -> str:
    """Return the path of the script or program."""
    if not argv or not program.is_python(argv[0]):
        return argv[0] if argv else ""
    found, _ = program.find_started_program(argv[1:])
    return found.text if found is not None and found.how is program.How.FILE else ""


def _of_the_run(line: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Return the command lines up to a shell, a login, a launcher: a process itself, what has started it, …"""
    for place, argv in enumerate(line):
        if place and _starts_others(argv):
            return
        yield argv


def _starts_others(argv: tuple[str, ...]) -> bool:
    """Give whether what a process starts need not be its own: a shell, a login, a manager, a launcher, a notebook's."""
    name = _words(argv)[0]
    if name in _WEB:  # also one that starts notebooks, or takes jobs from a queue: what it forks is taken for it
        return False
    word = program.outermost_name(argv)
    shell = word in programs.SHELLS or word in programs.USER_SWITCHES
    return shell or name in _PLUMBING or program.find_role(RelatedProcess(pid=0, argv=argv)).part is Part.ENDS


# -- by port -------------------------------------------------------------------------------------------------------


def _by_port(facts: Facts, proc: Path, sockets: dict[int, frozenset[int]] | None) -> str:
    line = [facts.argv, *(one.argv for one in facts.ancestors)]
    count = sum(1 for _ in _of_the_run(line))
    if any(argv and argv[0].startswith("ray::") for argv in line[:count]):
        return ""  # its workers listen for each other
    everyone = [facts.pid, *(one.pid for one in facts.ancestors)]
    held = read_sockets(everyone[:count], proc, known=sockets)
    if not held:
        return ""
    known = ports(facts.pid, proc)
    held &= known.keys()
    if held and count < len(everyone):
        # A fork of a notebook's kernel has the kernel's sockets, which are for its notebook.
        held -= read_sockets(everyone[count : count + 1], proc, known=sockets)
    never, chance = _PORTS | _rendezvous(facts), ephemeral(proc)
    chosen = {_GRPC, *_ports(word.rpartition("=")[2] for word in facts.argv)}
    found = [port for inode in held if (port := known[inode]) not in never and (port in chosen or port not in chance)]
    return f"listens on port {min(found)}" if found else ""


def _rendezvous(facts: Facts) -> set[int]:
    """Return the ports at which the ranks of a run meet, as environments and launchers name them."""
    texts: list[str] = []
    for environ in (facts.environ, *(one.environ for one in facts.ancestors)):
        if not isinstance(environ, Unread):
            texts += [environ[name] for name in _RENDEZVOUS if name in environ]
    for argv in (facts.argv, *(one.argv for one in facts.ancestors)):
        for place, word in enumerate(argv):
            name, given, value = word.partition("=")
            # `--master-port`, and Hydra's `+trainer.master_port=29500`
            if f"--{name.lstrip('-+').rpartition('.')[2].replace('_', '-')}" in _RENDEZVOUS_FLAGS:
                texts.append(value if given else "".join(argv[place + 1 : place + 2]))
    return _ports(texts)


def _ports(texts: Iterable[str]) -> set[int]:
    """Return the numbers that stand alone, or behind the colon of an address."""
    return {int(port) for text in texts for port in _PORT.findall(text[:4096])}
