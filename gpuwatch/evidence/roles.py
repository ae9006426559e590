"""What part a process above another plays: it belongs to the run, it only passes on, or the run begins below it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import NamedTuple

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

_SHELLS = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "ksh93", "tcsh", "csh", "ash", "rbash", "nu", "elvish"),
        *("busybox", "pwsh", "xonsh"),
    }
)

_TAKES_VALUE = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
"""Options of shells whose value is the next word. Source: bash(1), zshoptions(1)."""

_PASSES = frozenset(
    {
        *("timeout", "time", "nohup", "nice", "ionice", "numactl", "env", "stdbuf", "taskset", "chrt", "setsid"),
        *("script", "unbuffer", "expect", "strace", "ltrace", "gdb", "cuda-gdb", "watch", "xargs", "parallel", "flock"),
        *("catchsegv", "choom", "prlimit", "systemd-run", "systemd-inhibit", "sudo", "doas", "su", "runuser"),
        *("unshare", "nsenter", "setpriv", "chpst", "firejail", "bwrap", "apptainer", "singularity", "starter"),
        *("starter-suid", "enroot", "entr", "watchexec", "direnv", "rlwrap", "proxychains4", "uv", "uvx", "poetry"),
        *("pipenv", "hatch", "pixi", "rye", "pdm", "conda", "mamba", "micromamba", "make", "gmake", "ninja", "just"),
        *("task", "nsys", "ncu", "nvprof", "compute-sanitizer", "py-spy", "memray", "wandb", "dvc", "snakemake"),
        *("guild", "tsp", "ts", "pueued", "aim", "ipdb", "perf", "Apptainer", "Singularity"),
    }
)
"""`Apptainer runtime parent` is what that calls itself."""

_JUPYTER = frozenset(
    {
        *("jupyter-lab", "jupyter-labhub", "jupyter-notebook", "jupyter-nbclassic", "jupyter-server"),
        *("jupyter-singleuser", "jupyter-kernelgateway", "jupyter-enterprisegateway", "jupyterhub-singleuser"),
        *("jupyterhub", "jupyterlab", "jupyterlab.labhubapp", "notebook", "jupyter_server", "jupyterhub.singleuser"),
        *("jupyter-voila", "voila", "kernel_gateway", "enterprise_gateway", "batchspawner-singleuser", "marimo"),
    }
)

_TERMINALS = frozenset(
    {
        *("tmux", "screen", "SCREEN", "zellij", "dtach", "abduco", "sshd", "sshd-session", "dropbear", "mosh-server"),
        *("login", "agetty", "getty", "xterm", "uxterm", "konsole", "alacritty", "kitty", "ghostty", "foot", "tilix"),
        *("terminator", "xfce4-terminal", "lxterminal", "mate-terminal", "ptyxis", "guake", "yakuake", "terminology"),
        *("urxvt", "urxvtd", "rxvt", "st", "kgx", "code", "code-server", "code-tunnel", "code-insiders", "cursor"),
        *("windsurf", "node", "java", "pycharm", "rserver", "rsession", "emacs", "vim", "nvim", "ttyd", "gotty"),
        *("gvim", "zed", "spyder", "dataspell", "idea"),
    }
)
"""What holds a terminal: multiplexers, logins, terminal programs, IDEs (`node` is VS Code's server, `java` PyCharm)."""

_TERMINAL_STARTS = ("gnome-terminal", "wezterm", "jetbrains", "emacs-", "zed-remote-server", "Relay(")

_EDITORS = frozenset({"vi", "view", "nano", "hx", "kak", "micro", "mc", "ranger"})
"""What people start programs from in a terminal, and that holds none itself."""

_MANAGERS = frozenset(
    {
        *("systemd", "(sd-pam)", "init", "tini", "tini-static", "dumb-init", "docker-init", "catatonit", "podman-init"),
        *("s6-svscan", "s6-supervise", "runsv", "runsvdir", "supervisord", "supervisor.supervisord", "circusd", "PM2"),
        *("cron", "crond", "anacron", "atd", "fcron", "slurmstepd", "slurmd", "pbs_mom", "sge_execd", "sge_shepherd"),
        *("sbatchd", "res", "conmon", "runc", "crun", "dockerd", "containerd", "podman", "docker", "kubelet"),
        *("gnome-shell", "plasmashell", "gnome-session-binary", "Xorg", "dbus-daemon", "nomad", "gitlab-runner"),
        *("Runner.Worker", "buildkite-agent", "pause", "gpuwatch", "airflow", "celery"),
    }
)

_ENDS = _MANAGERS | _TERMINALS | _EDITORS

_MANAGER_STARTS = ("containerd-shim", "condor_", "init(")

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
    return word in _JUPYTER or (word == "jupyter" and bool(_JUPYTER & {f"jupyter-{one}" for one in argv[1:4]}))


def holds_terminal(kin: Kin) -> bool:
    """Say whether a process holds the terminal of those below it: a multiplexer, a login, a terminal, an IDE."""
    word = outermost(kin.argv) or kin.comm.partition(":")[0]
    return word in _TERMINALS or word.startswith(_TERMINAL_STARTS)


def of(kin: Kin) -> Role:
    """Give the part that an ancestor plays."""
    word = outermost(kin.argv)
    if not word and not kin.argv:
        word = kin.comm.partition(":")[0]
    if word in _LAUNCHERS:
        return Role(Part.LAUNCHER, _LAUNCHERS[word])
    if word in _SHELLS:
        return Role(Part.PASSES if _has_script(kin.argv) else Part.ENDS)
    if word in _PASSES or _is_debugger(kin.argv):
        return Role(Part.PASSES)
    ends = word in _ENDS or word.startswith((*_TERMINAL_STARTS, *_MANAGER_STARTS))
    ends = ends or is_jupyter(kin.argv) or any((word, one) in _AGENTS for one in kin.argv[1:4])
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
