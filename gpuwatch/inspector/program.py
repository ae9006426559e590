"""Program that a command line runs, and its part in a run: launcher, worker, or only a wrapper."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import NamedTuple

from gpuwatch import programs
from gpuwatch.declared.facts import RelatedProcess

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")

_WRAPPERS = frozenset(
    {
        *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        *("accelerate", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
        *("deepspeed", "deepspeed.launcher.launch", "deepspeed.launcher.runner", "horovodrun"),
        *("ipython", "IPython", "pdb", "ipdb", "debugpy", "cProfile", "profile", "coverage", "kernprof", "viztracer"),
        *("line_profiler", "streamlit"),
    }
)
"""Scripts and modules that run another script, which stands behind their own options."""

_WORKER_CODE = ("from multiprocessing.", "import sys; from multiprocessing.")
"""How `spawn` and `forkserver` start a worker. Source: multiprocessing/spawn.py, get_command_line."""

_WORKER_MODULE = "joblib.externals.loky."

_NOTEBOOKS = frozenset({"ipykernel_launcher", "ipykernel"})


class How(Enum):
    """What kind of name a program has."""

    FILE = "file"
    MODULE = "-m"
    CODE = "-c"
    WORKER = "worker"
    """A worker of the process above it, whose source it runs."""


class Program(NamedTuple):
    """A Python program, by the path of its file, the name of its module, or its code."""

    how: How
    text: str = ""


def is_python(path: str) -> bool:
    """Return whether a path is that of a Python interpreter: `/usr/bin/python3.11`."""
    return bool(_PYTHON.fullmatch(path.rpartition("/")[2]))


@functools.lru_cache(maxsize=128)
def find_program(argv: tuple[str, ...]) -> Program | None:
    """Return what a Python interpreter was told to run; None for a shell of its own, a notebook, another program.

    Behind torchrun and its like the user's own script is given.
    """
    if not argv or not is_python(argv[0]):
        return None
    found, rest = find_started_program(argv[1:])
    if found is None:
        return None
    name = PurePosixPath(found.text).name.removesuffix(".py") if found.how is How.FILE else found.text
    if found.how is How.CODE:
        return Program(How.WORKER) if found.text.startswith(_WORKER_CODE) else found
    if name in _NOTEBOOKS:
        return None
    if found.how is How.MODULE and name.startswith(_WORKER_MODULE):
        return Program(How.WORKER)
    return _wrapped(rest) if name in _WRAPPERS else found


@functools.lru_cache(maxsize=128)
def find_outermost_program(argv: tuple[str, ...]) -> Program | None:
    """Return what a Python interpreter was told to run, torchrun and its like too; None as in `of`."""
    return find_started_program(argv[1:])[0] if argv and is_python(argv[0]) else None


def find_started_program(arguments: Sequence[str]) -> tuple[Program | None, Sequence[str]]:
    """Skip the interpreter's own options; give what it runs, and the arguments of that. Source: python(1).

    The arguments are those behind the interpreter's name. What is run may be a wrapper, see `of`; None for nothing.
    """
    place = 0
    while place < len(arguments):
        word, rest = arguments[place], arguments[place + 1 :]
        if word == "-":
            return None, rest
        if not word.startswith("-"):
            return Program(How.FILE, word), rest
        place += 1
        if word.startswith("--"):
            place += word == "--check-hash-based-pycs"
            continue
        for at, letter in enumerate(word):
            if letter in "cm":
                text = word[at + 1 :] or (rest[0] if rest else "")
                return Program(How.CODE if letter == "c" else How.MODULE, text), rest if word[at + 1 :] else rest[1:]
            if letter in "WX":  # the rest of the word is its value, or the next word
                place += at == len(word) - 1
                break
    return None, ()


def _wrapped(arguments: Sequence[str]) -> Program | None:
    """Return the script behind the options of a wrapper: it is the first that is called one, or follows `-m`."""
    for place, word in enumerate(arguments):
        if word in ("-m", "--module"):
            return Program(How.MODULE, "".join(arguments[place + 1 : place + 2]))
        if word.endswith(".py") and not word.startswith("-"):
            return Program(How.FILE, word)
    return None


class Part(Enum):
    """Its part."""

    PROGRAM = "program"
    """It does work of its own, or starts what does: it belongs to the run."""
    LAUNCHER = "launcher"
    """It starts the ranks of one run."""
    PASSES = "passes"
    """A shell with a script, a wrapper (timeout, xargs, make): what it starts are runs of their own."""
    ENDS = "ends"
    """An interactive shell, a login, a terminal, a service manager: the run begins below it."""


class Role(NamedTuple):
    """The part, and for a launcher what it is called: `torchrun`."""

    part: Part
    word: str = ""


_LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    **dict.fromkeys(
        ("accelerate", "accelerate-launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
        "accelerate",
    ),
    **dict.fromkeys(
        ("deepspeed", "deepspeed.pt", "deepspeed.launcher.launch", "deepspeed.launcher.runner"), "deepspeed"
    ),
    **dict.fromkeys(("horovodrun", "horovod.runner.launch"), "horovodrun"),
    **dict.fromkeys(("composer", "composer.cli.launcher"), "composer"),
    **dict.fromkeys(("colossalai", "colossalai.cli"), "colossalai"),
    **dict.fromkeys(("fabric", "lightning"), "lightning"),
    **dict.fromkeys(
        (
            *("mpirun", "mpiexec", "orterun", "prterun", "prun", "orted", "prted", "prte", "mpirun_rsh", "mpispawn"),
            *("hydra_pmi_proxy", "hydra_bstrap_proxy", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi"),
            *("mpirun.mpich", "mpiexec.mpich"),
        ),
        "mpirun",
    ),
    "srun": "srun",
    "raylet": "ray",
}
"""By the name of the program, of the Python script without a folder, or of the module behind `-m`."""

_TAKES_VALUE = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
"""Options of shells whose value is the next word. Source: bash(1), zshoptions(1)."""

_PASSES = frozenset(
    {
        *("timeout", "time", "nohup", "nice", "ionice", "numactl", "env", "stdbuf", "taskset", "chrt", "setsid"),
        *("script", "unbuffer", "expect", "strace", "ltrace", "gdb", "cuda-gdb", "watch", "xargs", "parallel", "flock"),
        *("catchsegv", "choom", "prlimit", "systemd-run", "systemd-inhibit"),
        *("unshare", "nsenter", "setpriv", "chpst", "firejail", "bwrap", "apptainer", "singularity", "starter"),
        *("starter-suid", "enroot", "entr", "watchexec", "direnv", "rlwrap", "proxychains4", "uv", "uvx", "poetry"),
        *("pipenv", "hatch", "pixi", "rye", "pdm", "conda", "mamba", "micromamba", "make", "gmake", "ninja", "just"),
        *("task", "nsys", "ncu", "nvprof", "compute-sanitizer", "py-spy", "memray", "wandb", "dvc", "snakemake"),
        *("guild", "tsp", "ts", "pueued", "aim", "ipdb", "perf", "Apptainer", "Singularity"),
    }
)
"""`Apptainer runtime parent` is what that calls itself."""

_AGENTS = frozenset(
    {
        *(("ray", "start"), ("clearml-agent", "daemon"), ("clearml_agent", "daemon"), ("hq", "worker")),
        *(("prefect", "worker"), ("prefect", "agent")),
    }
)
"""Those that take one job after the other, by the program and what it is told to do: its other commands run one."""

_SCRIPTED = frozenset({"perl", "ruby", "tclsh"})
"""Interpreters beside Python in which programs of the lists above are written: GNU parallel is in Perl."""

_SEPARATOR = re.compile(r":| ")


@functools.lru_cache(maxsize=128)
def outermost_name(argv: tuple[str, ...]) -> str:
    """Name what a command line runs: the program, or the script or module of a Python one, whatever that starts itself.

    Of a script only its file's name. A module of a package keeps its dots: `torch.distributed.run`.
    """
    found = find_outermost_program(argv)
    if found is not None:
        return (
            PurePosixPath(found.text).name if found.how is How.FILE else found.text if found.how is How.MODULE else ""
        )
    name = _name(argv[0]) if argv else ""
    return _name(next((word for word in argv[1:] if not word.startswith("-")), "")) if name in _SCRIPTED else name


def _name(word: str) -> str:
    title = word.lstrip("-").partition(": ")[0]  # `sshd: ada@pts/0`
    return _SEPARATOR.split(title.rstrip("/").rpartition("/")[2], maxsplit=1)[0]


def is_jupyter(argv: tuple[str, ...]) -> bool:
    """Return whether a command line is that of a server that starts notebook kernels."""
    word = outermost_name(argv)
    if word == "jupyter":
        return any(f"jupyter-{one}" in programs.NOTEBOOK_SERVERS for one in argv[1:4])
    return word in programs.NOTEBOOK_SERVERS


def holds_terminal(kin: RelatedProcess) -> bool:
    """Return whether a process holds the terminal of those below it: a multiplexer, a login, a terminal, an IDE."""
    word = outermost_name(kin.argv) or kin.comm.partition(":")[0]
    return programs.holds_terminal(word)


def find_role(kin: RelatedProcess) -> Role:
    """Return the part that an ancestor plays."""
    word = outermost_name(kin.argv)
    if not word and not kin.argv:
        word = kin.comm.partition(":")[0]
    if word in _LAUNCHERS:
        return Role(Part.LAUNCHER, _LAUNCHERS[word])
    if word in programs.SHELLS:
        return Role(Part.PASSES if _has_script(kin.argv) else Part.ENDS)
    if word in _PASSES or word in programs.USER_SWITCHES or _is_debugger(kin.argv):
        return Role(Part.PASSES)
    ends = (
        programs.starts_unrelated(word) or is_jupyter(kin.argv) or any((word, one) in _AGENTS for one in kin.argv[1:4])
    )
    return Role(Part.ENDS if ends else Part.PROGRAM)


def _has_script(argv: Sequence[str]) -> bool:
    """Return whether a shell was given something to run; else it waits for somebody to type."""
    if argv and is_python(argv[0]):  # xonsh is a script of Python
        argv = ("", *find_started_program(argv[1:])[1])
    place = 1 + (bool(argv) and PurePosixPath(argv[0]).name == "busybox")
    while place < len(argv):
        word = argv[place]
        if not word.startswith(("-", "+")) or word == "--":
            return True
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            return True
        place += 2 if word in _TAKES_VALUE else 1
    return False


def _is_debugger(argv: tuple[str, ...]) -> bool:
    """Return whether what VS Code starts a program under its debugger with: `python …/debugpy/launcher 4711 --`."""
    found = find_outermost_program(argv)
    return found is not None and found.how is How.FILE and "/debugpy/" in f"{found.text}/"
