"""What part a process above another plays: it belongs to the run, it only passes on, or the run begins below it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import NamedTuple

from gpuwatch import programs
from gpuwatch.declared.facts import Kin
from gpuwatch.evidence import program
from gpuwatch.evidence.program import How


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
def outermost(argv: tuple[str, ...]) -> str:
    """Name what a command line runs: the program, or the script or module of a Python one, whatever that starts itself.

    Of a script only its file's name. A module of a package keeps its dots: `torch.distributed.run`.
    """
    found = program.outermost(argv)
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
    """Say whether a command line is that of a server that starts notebook kernels."""
    word = outermost(argv)
    if word == "jupyter":
        return any(f"jupyter-{one}" in programs.NOTEBOOK_SERVERS for one in argv[1:4])
    return word in programs.NOTEBOOK_SERVERS


def holds_terminal(kin: Kin) -> bool:
    """Say whether a process holds the terminal of those below it: a multiplexer, a login, a terminal, an IDE."""
    word = outermost(kin.argv) or kin.comm.partition(":")[0]
    return programs.holds_terminal(word)


def of(kin: Kin) -> Role:
    """Give the part that an ancestor plays."""
    word = outermost(kin.argv)
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
    """Say whether a shell was given something to run; else it waits for somebody to type."""
    if argv and program.is_python(argv[0]):  # xonsh is a script of Python
        argv = ("", *program.started(argv[1:])[1])
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
    """Say whether it is what VS Code starts a program under its debugger with: `python …/debugpy/launcher 4711 --`."""
    found = program.outermost(argv)
    return found is not None and found.how is How.FILE and "/debugpy/" in f"{found.text}/"
