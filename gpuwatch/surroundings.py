"""What a process runs in and what it belongs to: container, pod, batch job, unit, terminal, notebook, and its run.

Part of the stream, see `gpuwatch.model`. All text is clean. What cannot be read is empty or None, never made up.
"""

from __future__ import annotations

import msgspec

_PEOPLES = (
    "jupyter",
    "notebook",
    "code-server",
    "code-tunnel",
    "rstudio",
    "rserver",
    "vscode",
    "openvscode",
    "tmux",
    "screen",
    "emacs",
)
"""How units are called below which people start what they like: notebooks, editors, terminals. TheLittlestJupyterHub
and systemdspawner call theirs `jupyter-NAME.service`."""


def is_service(unit: str) -> bool:
    """Say whether what runs in a systemd unit is its service, which waits and is tended to; an empty name is no unit.

    A kernel of a notebook below `jupyterhub.service`, or a window of `tmux@ada.service`, is not: people start and leave
    those by hand, and the unit knows nothing of them.
    """
    return bool(unit) and not unit.startswith(_PEOPLES)


class Container(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The container that a process is in."""

    runtime: str = ""
    """`docker`, `podman`, `containerd`, `cri-o`, `lxc`, `apptainer`…; empty where the cgroup does not tell."""
    id: str = ""
    """As its runtime prints it: the first 12 digits."""
    name: str = ""
    """Empty where neither the runtime's socket nor its state is ours to read."""


class Pane(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where in a terminal multiplexer a process was started."""

    program: str
    """`tmux`, `screen` or `zellij`."""
    session: str = ""
    """Its name, or what the environment has of it: `$0` is tmux's number of a session."""
    window: str = ""
    """Number and name of the window, or tmux's number of the pane: `%3`."""
    alive: bool | None = None
    """Whether its server still runs; None where that cannot be told."""


class Notebook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Jupyter kernel that a process is, or is a child of."""

    kernel: str = ""
    """Start of its id."""
    path: str = ""
    """The notebook, as its server was asked for it."""
    server: int | None = None
    """PID of the server that started it; None where it has gone or cannot be told."""
    left: bool = False
    """Its server is known to have gone."""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one start set going: the process itself, or all ranks and workers of a distributed run."""

    key: str
    """The same for all processes of one run on this host: `PID:START` of its head, or what its launcher calls it."""
    name: str = ""
    """What runs, for people: `train.py`, `vllm serve`, without folders and arguments."""
    launcher: str = ""
    """`torchrun`, `accelerate`, `deepspeed`, `mpirun`, `srun`, `ray`, `TF_CONFIG`…; empty for a run of one process."""
    head: int = 0
    """PID of the first process of it that is still there: the launcher, or the only one; 0 where it is not visible."""
    head_start: int = 0
    rank: int | None = None
    local_rank: int | None = None
    world: int | None = None
    """How many ranks there are, on all hosts."""
    worker_of: int | None = None
    """PID of the rank (or only process) that forked or spawned this one as a helper; None where it is a rank itself."""
    orphaned: bool = False
    """It belongs to something that has ended: its launcher, or the process that it is a worker of, is gone."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is known of where one process runs."""

    container: Container | None = None
    pod: str = ""
    """Kubernetes: `namespace/name`, its name alone, or its uid, by what can be read."""
    slurm: str = ""
    """Job and step: `4711.0`, `4711.batch`, or the job alone."""
    batch: str = ""
    """Another scheduler and its job: `pbs 4711`, `lsf 4711`, `sge 4711`, or HTCondor's slot: `condor slot1_2`."""
    unit: str = ""
    """The systemd unit that it is a service of: `ollama.service`; empty for a login session's scope."""
    user_unit: bool = False
    """The unit is one of the user's own manager."""
    pane: Pane | None = None
    notebook: Notebook | None = None
    ssh: str = ""
    """From where the login came, an address; empty where it was no SSH login or that cannot be told."""
    login: str = ""
    """Who logged in, by the kernel's login uid, where it is not the owner: who is behind root in a container."""
    login_uid: int | None = None
    job: Job | None = None
    server: str = ""
    """Why it is taken for a server that waits for requests: `vLLM`, `listens on port 8000`; empty for none."""
    peer: str = ""
    """Whom it has a TCP connection to, and may wait for: `10.0.0.3:6379`; only of the viewer's own that have lost their
    parent."""
    words: str = ""
    """What of this could not be read, and why; empty where all was."""

    @property
    def service(self) -> bool:
        """Whether it is its unit's service, see `is_service`: it is no stray for being idle or without a parent."""
        return is_service(self.unit)

    @property
    def batch_job(self) -> str:
        """The job of whatever scheduler, with its name: `slurm 4711.0`, `pbs 4711`; empty for none."""
        return f"slurm {self.slurm}" if self.slurm else self.batch

    @property
    def where(self) -> str:
        """What stands in the column `in`: the one place that tells most."""
        if self.pod:
            return f"pod {self.pod.rpartition('/')[2]}"
        if self.batch_job:
            return self.batch_job
        if self.container:
            runtime = self.container.runtime or "container"
            return f"{runtime} {self.container.name or self.container.id}".rstrip()
        if self.notebook:
            return f"notebook {self.notebook.path.rpartition('/')[2] or self.notebook.kernel}".rstrip()
        if self.unit:
            return self.unit.removesuffix(".service")
        if self.pane:
            return " ".join(word for word in (self.pane.program, self.pane.session, self.pane.window) if word)
        return f"ssh {self.ssh}" if self.ssh else ""
