"""Well-known programs by name: shells, inits, logins, terminals, service managers. The one table of what they are.

A name is that of a program, or of a Python script or module. The kernel's own name of a process (`comm`) is cut after
15 characters: `from_comm` gives the name that is meant.
"""

from __future__ import annotations

SHELLS = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "ksh93", "tcsh", "csh", "ash", "rbash", "nu", "elvish"),
        *("busybox", "pwsh", "xonsh"),
    }
)

INITS = frozenset({"systemd", "init", "runit", "openrc-init", "s6-svscan"})
"""What PID 1 is called, and a user's own service manager: what they have not started was left to them.

WSL's is called `init(Ubuntu)`: see `is_init`."""

CONTAINER_INITS = frozenset({"tini", "tini-static", "dumb-init", "docker-init", "catatonit", "podman-init"})
"""First processes of containers that start exactly one other, at once."""

MANAGERS = frozenset(
    {
        *("(sd-pam)", "s6-supervise", "runsv", "runsvdir", "supervisord", "supervisor.supervisord", "circusd", "PM2"),
        *("cron", "crond", "anacron", "atd", "fcron", "slurmstepd", "slurmd", "pbs_mom", "sge_execd", "sge_shepherd"),
        *("sbatchd", "res", "conmon", "runc", "crun", "dockerd", "containerd", "podman", "docker", "kubelet"),
        *("gnome-shell", "plasmashell", "gnome-session-binary", "Xorg", "dbus-daemon", "nomad", "gitlab-runner"),
        *("Runner.Worker", "buildkite-agent", "pause", "gpuwatch", "airflow", "celery"),
    }
)
"""What starts services, batch jobs, containers and desktops that have nothing to do with each other."""

_MANAGER_STARTS = ("containerd-shim", "condor_")

MULTIPLEXERS = frozenset({"tmux", "screen", "SCREEN", "zellij", "dtach", "abduco"})

LOGINS = frozenset({"sshd", "sshd-session", "dropbear", "mosh-server", "login", "agetty", "getty"})

USER_SWITCHES = frozenset({"su", "sudo", "doas", "runuser"})
"""What starts a command, or a shell, as another user."""

TERMINALS = frozenset(
    {
        *("xterm", "uxterm", "konsole", "alacritty", "kitty", "ghostty", "foot", "tilix", "ttyd", "gotty", "kgx"),
        *("terminator", "xfce4-terminal", "lxterminal", "mate-terminal", "ptyxis", "guake", "yakuake", "terminology"),
        *("urxvt", "urxvtd", "rxvt", "st", "code", "code-server", "code-tunnel", "code-insiders", "cursor", "windsurf"),
        *("node", "java", "pycharm", "rserver", "rsession", "emacs", "vim", "nvim", "gvim", "zed", "spyder"),
        *("dataspell", "idea"),
    }
)
"""Terminal programs, and editors and IDEs that have a terminal (`node` is VS Code's server, `java` is PyCharm)."""

_TERMINAL_STARTS = ("gnome-terminal", "wezterm", "jetbrains", "emacs-", "zed-remote-server", "Relay(")

EDITORS = frozenset({"vi", "view", "nano", "hx", "kak", "micro", "mc", "ranger"})
"""What people start programs from in a terminal, and that holds none itself."""

NOTEBOOK_SERVERS = frozenset(
    {
        *("jupyter-lab", "jupyter-labhub", "jupyter-notebook", "jupyter-nbclassic", "jupyter-server"),
        *("jupyter-singleuser", "jupyter-kernelgateway", "jupyter-enterprisegateway", "jupyterhub-singleuser"),
        *("jupyterhub", "jupyterlab", "jupyterlab.labhubapp", "notebook", "jupyter_server", "jupyterhub.singleuser"),
        *("jupyter-voila", "voila", "kernel_gateway", "enterprise_gateway", "batchspawner-singleuser", "marimo"),
    }
)

_COMM = 15
"""Characters that the kernel keeps of a name: TASK_COMM_LEN less the zero behind it (include/linux/sched.h)."""

_BY_COMM = {
    name[:_COMM]: name
    for name in (
        *(*SHELLS, *INITS, *CONTAINER_INITS, *MANAGERS, *MULTIPLEXERS, *LOGINS, *USER_SWITCHES, *TERMINALS, *EDITORS),
        *NOTEBOOK_SERVERS,
    )
}


def from_comm(comm: str) -> str:
    """Name the program of a process by its `comm`: `jupyter-noteboo`, `tmux: server`, `-bash`."""
    name = comm.lstrip("-").partition(":")[0]
    return _BY_COMM.get(name, name)


def is_init(name: str) -> bool:
    """Whether it takes in what others have left: PID 1 of a machine, or a user's service manager."""
    return name in INITS or name.startswith("init(")


def holds_terminal(name: str) -> bool:
    """Whether it holds the terminal of those below it: a multiplexer, a login, a terminal, an IDE."""
    return name in MULTIPLEXERS or name in LOGINS or name in TERMINALS or name.startswith(_TERMINAL_STARTS)


def keeps_sessions(name: str) -> bool:
    """Whether what runs below it goes on for itself, wherever it was started: a login's, a service's, a notebook's."""
    kinds = (MULTIPLEXERS, LOGINS, CONTAINER_INITS, MANAGERS, NOTEBOOK_SERVERS)
    return any(name in kind for kind in kinds) or is_init(name) or name.startswith(_MANAGER_STARTS)


def starts_unrelated(name: str) -> bool:
    """Whether the programs below it need have nothing to do with each other: no run begins with it."""
    return keeps_sessions(name) or holds_terminal(name) or name in EDITORS
