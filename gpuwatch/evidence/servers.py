"""Why a process is taken for a server that waits for requests: what it is called, or the port that it listens on.

Such a one is no stray for being idle, so this rather calls one too many a server. What a framework opens for itself is
for no requests: ports that nobody chose, the rendezvous of a distributed run, a notebook's kernel, Ray's and Dask's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpuwatch import programs
from gpuwatch.declared.facts import Facts, Kin, Unread
from gpuwatch.evidence import listening
from gpuwatch.inspector import program
from gpuwatch.inspector.program import Part

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
    """Say why a process is taken for a server: `vLLM`, `listens on port 8000`; empty for none, or where nothing tells.

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
    """Give what runs (program, script without `.py`, or module) and its arguments."""
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
    """Give the path of the script or program."""
    if not argv or not program.is_python(argv[0]):
        return argv[0] if argv else ""
    found, _ = program.find_started_program(argv[1:])
    return found.text if found is not None and found.how is program.How.FILE else ""


def _of_the_run(line: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Give the command lines up to a shell, a login, a launcher: a process itself, what has started it, …"""
    for place, argv in enumerate(line):
        if place and _starts_others(argv):
            return
        yield argv


def _starts_others(argv: tuple[str, ...]) -> bool:
    """Say whether what a process starts need not be its own: a shell, a login, a manager, a launcher, a notebook's."""
    name = _words(argv)[0]
    if name in _WEB:  # also one that starts notebooks, or takes jobs from a queue: what it forks is taken for it
        return False
    word = program.outermost_name(argv)
    shell = word in programs.SHELLS or word in programs.USER_SWITCHES
    return shell or name in _PLUMBING or program.find_role(Kin(pid=0, argv=argv)).part is Part.ENDS


# -- by port -------------------------------------------------------------------------------------------------------


def _by_port(facts: Facts, proc: Path, sockets: dict[int, frozenset[int]] | None) -> str:
    line = [facts.argv, *(one.argv for one in facts.ancestors)]
    count = sum(1 for _ in _of_the_run(line))
    if any(argv and argv[0].startswith("ray::") for argv in line[:count]):
        return ""  # its workers listen for each other
    everyone = [facts.pid, *(one.pid for one in facts.ancestors)]
    held = listening.sockets(everyone[:count], proc, known=sockets)
    if not held:
        return ""
    known = listening.ports(facts.pid, proc)
    held &= known.keys()
    if held and count < len(everyone):
        # A fork of a notebook's kernel has the kernel's sockets, which are for its notebook.
        held -= listening.sockets(everyone[count : count + 1], proc, known=sockets)
    never, chance = _PORTS | _rendezvous(facts), listening.ephemeral(proc)
    chosen = {_GRPC, *_ports(word.rpartition("=")[2] for word in facts.argv)}
    found = [port for inode in held if (port := known[inode]) not in never and (port in chosen or port not in chance)]
    return f"listens on port {min(found)}" if found else ""


def _rendezvous(facts: Facts) -> set[int]:
    """Give the ports at which the ranks of a run meet, as environments and launchers name them."""
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
    """Give the numbers that stand alone, or behind the colon of an address."""
    return {int(port) for text in texts for port in _PORT.findall(text[:4096])}
