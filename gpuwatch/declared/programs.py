"""Which known program a command line starts, and with which arguments.

`vllm serve m`, `python /usr/local/bin/vllm serve m`, `python -m vllm.entrypoints.openai.api_server` and the title
`VLLM::EngineCore` are all vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Program(NamedTuple):
    """How one framework's programs are called."""

    framework: str
    """An id of `frameworks.NAMES`; empty where it belongs to none."""
    names: tuple[str, ...] = ()
    """File names, of a binary or of the script that an interpreter runs, without `.py`."""
    modules: tuple[str, ...] = ()
    """Names behind `python -m`, with all that is in them."""
    title: str = ""
    """Regular expression of how the titles start that its processes set; empty for none."""


class Started(NamedTuple):
    """A known program, and what it was given."""

    program: Program
    arguments: tuple[str, ...]


GENV = "genv-docker"
"""Not a framework, but a program with a flag of its own."""

_TRTLLM = "trtllm-serve trtllm-bench trtllm-eval trtllm-llmapi-launch"
# vllm, set_process_title: VLLM_PROCESS_NAME_PREFIX takes the place of VLLM.
_VLLM = r"VLLM::|[^/\s]{1,64}::(?:EngineCore|Worker|APIServer|DPCoordinator)(?![a-z])"
_LLAMA = "llama-server llama-cli llama-bench llama-run llama-mtmd-cli llama-embedding llama-perplexity"

PROGRAMS = (
    Program("vllm", names=("vllm",), modules=("vllm",), title=_VLLM),
    Program("sglang", names=("sglang",), modules=("sglang",), title="sglang::"),
    Program("tensorrt-llm", names=tuple(_TRTLLM.split()), modules=("tensorrt_llm",)),
    Program("lmdeploy", names=("lmdeploy",), modules=("lmdeploy",)),
    Program("tgi", names=("text-generation-launcher", "text-generation-server"), modules=("text_generation_server",)),
    Program("tensorflow-serving", names=("tensorflow_model_server",)),
    Program("triton", names=("tritonserver",)),
    Program("dask", names=("dask-cuda-worker",), modules=("dask_cuda",)),
    Program("llama.cpp", names=tuple(_LLAMA.split()), modules=("llama_cpp",)),
    Program("ollama", names=("ollama", "ollama_llama_server")),
    Program("", names=(GENV, f"{GENV}.sh")),
)

_SCRIPTS = {
    "api_server": (("/vllm/", "vllm"), ("/lmdeploy/", "lmdeploy"), ("", "vllm")),
    "launch_server": (("/sglang/", "sglang"), ("", "sglang")),
}
"""Scripts of a name that says little: whose they are by the folder that they lie in; the last is whose it mostly is."""

_BY_FRAMEWORK = {program.framework: program for program in PROGRAMS}
_BY_NAME = {name: program for program in PROGRAMS for name in program.names}
_BY_MODULE = {name: program for program in PROGRAMS for name in program.modules}
_TITLES = tuple((re.compile(program.title), program) for program in PROGRAMS if program.title)

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*(?:-dbg|t|d)?")
_CODE = re.compile(r"-|-[bBdEhiIOqsSuvVx]*c.*", re.DOTALL)
_MODULE = re.compile(r"-[bBdEhiIOqsSuvVx]*m")
_TAKE_ANOTHER = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Options of the interpreter whose value is the next argument. Source: docs.python.org/3/using/cmdline.html."""


def started(argv: Sequence[str]) -> Started | None:
    """Say which known program a command line starts; None for none of them. Never raises."""
    if not argv:
        return None
    for title, program in _TITLES:
        if title.match(argv[0]):
            return Started(program, ())
    if _PYTHON.fullmatch(base(argv[0])) is None:
        return _by_path(argv[0], argv[1:])
    place = 1
    while place < len(argv) and argv[place].startswith("-"):
        option = argv[place]
        if _CODE.fullmatch(option):
            return None
        place += 2 if option in _TAKE_ANOTHER else 1
        if _MODULE.fullmatch(option):
            return _by_module(argv[place:])
    return _by_path(argv[place], argv[place + 1 :]) if place < len(argv) else None


def base(path: str) -> str:
    """Give the file name at the end of a path."""
    return path.rpartition("/")[2]


def _by_path(path: str, arguments: Sequence[str]) -> Started | None:
    name = base(path).removesuffix(".py")
    program = _BY_NAME.get(name)
    if program is None and path.endswith(".py"):
        owners = _SCRIPTS.get(name, ())
        program = next((_BY_FRAMEWORK[owner] for folder, owner in owners if folder in path), None)
    if program is None and name == "dask" and list(arguments[:2]) == ["cuda", "worker"]:
        program = _BY_FRAMEWORK["dask"]
    return Started(program, tuple(arguments)) if program else None


def _by_module(rest: Sequence[str]) -> Started | None:
    program = _BY_MODULE.get(rest[0].partition(".")[0]) if rest else None
    return Started(program, tuple(rest[1:])) if program else None
