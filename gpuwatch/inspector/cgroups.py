r"""What the path of a cgroup says of a process: container, pod, batch job, unit. It reads nothing, and never raises.

The path is as /proc/PID/cgroup has it, seen from our own cgroup namespace: `/../..` may stand before it. Names come out
raw; who shows them cleans them. Where these paths come from:

- Docker: `/docker/ID` (cgroupfs) and `/system.slice/docker-ID.scope` (systemd), docs.docker.com, runtime metrics
- Podman: `libpod-ID.scope/container`, and `libpod-payload-ID` under a unit (`--cgroups=split`), podman-run(1)
- Kubernetes: `kubepods-burstable-podUID.slice/cri-containerd-ID.scope` with `_` for `-` in the uid (systemd), else
  `/kubepods/burstable/podUID/ID`, pkg/kubelet/cm/cgroup_manager_linux.go
- LXC, Incus: `/lxc.payload.NAME` and before LXC 4 `/lxc/NAME`, lxc.container.conf(5), lxc.cgroup.dir.container
- systemd-nspawn: `machine-NAME.scope` and `systemd-nspawn@NAME.service`, with escapes as `\x2d`, systemd-nspawn(1)
- Slurm: `/slurm/uid_U/job_J/step_S/task_T` and `…slurmstepd.scope/job_J/step_S/user/task_T`, slurm.schedmd.com
- PBS: `/pbs_jobs.service/jobid/NUMBER.SERVER`, OpenPBS' pbs_cgroups.PY, `cgroup_prefix`
- units: `system.slice/NAME.service`, and below `user@UID.service` those of a user's own manager, systemd.slice(5)
"""

from __future__ import annotations

import re
from typing import NamedTuple

_HEX = r"[0-9a-f]{64}"
_BARE = re.compile(_HEX)
_SCOPED = re.compile(rf"(?:(.+?)[-:])?({_HEX})(?:\.scope)?")
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$")
_JOB = re.compile(r"job_(\d{1,10})")
_STEP = re.compile(r"step_([a-z0-9+]{1,20})")
_PBS = re.compile(r"/(?:pbs_jobs|pbspro|pbs)(?:\.service|\.slice)?/jobid/(\d{1,10}(?:\[\d{1,10}\])?)")
_USER = re.compile(r"user-(\d{1,10})\.slice")
_MANAGER = re.compile(r"user@\d{1,10}\.service")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")

_RUNTIMES = {
    "docker": "docker",
    "libpod": "podman",
    "libpod-payload": "podman",
    "crio": "cri-o",
    "cri-containerd": "containerd",
    "containerd": "containerd",
    "nerdctl": "containerd",
}
"""By what stands before the id."""

_PARENTS = {"docker": "docker", "moby": "docker", "ecs": "docker", "libpod_parent": "podman", "default": "containerd"}
"""By the folder that the bare id stands in: `default` is containerd's namespace."""

_CARRIERS = re.compile(
    r"""(?x)(?:
    ssh | sshd | dropbear | tailscaled | teleport | amazon-ssm-agent | google-guest-agent | walinuxagent | waagent
    | systemd-(?:logind|machined|run) | (?:serial-|console-)?getty | autovt | cockpit(?:-.+)?
    | display-manager | [gx]dm\d? | lightdm | sddm | greetd | ly | xrdp(?:-sesman)? | x2goserver | (?:tiger)?vncserver
    | nxserver | dcvserver | chrome-remote-desktop
    | cron | crond | cronie | fcron | anacron | atd
    | slurmd | slurmstepd | condor | pbs | pbs_mom | pbs_jobs | sgeexecd.* | lsfd | flux
    | docker | containerd | podman | cri-o | crio | kubelet | k3s(?:-.+)? | rke2-.+ | snap\.docker\.dockerd
    | lxc | lxd | incus
    | dbus(?:-broker|-.+)? | gnome-.+ | org\.gnome\..+ | plasma-.+ | xfce4-.+ | foot-server
    )(?:@.*)?\.service"""
)
"""Services that only carry what people start through them: logins, desktops, schedulers, the runtimes of containers.

The terminals of a desktop are among them: gnome-terminal-server. So is what a desktop starts as `app-NAME@….service`
in a user's own manager (systemd.io/DESKTOP_ENVIRONMENTS).
"""


class Held(NamedTuple):
    """A container, as its cgroup calls it."""

    runtime: str
    """Empty where the path does not tell."""
    id: str
    """All 64 digits; empty where the runtime goes by names."""
    name: str = ""


class Step(NamedTuple):
    """Slurm's job and step; `step` is empty outside of one."""

    job: str
    step: str


class Unit(NamedTuple):
    """A systemd service, as systemctl takes its name, and whether it is one of a user's own manager."""

    name: str
    user: bool


def container(path: str) -> Held | None:
    """Return the innermost container on a path; None for none."""
    parts = path.split("/")
    for place in range(len(parts) - 1, -1, -1):
        found = _container(parts[place], parts[place - 1] if place else "", parts[:place])
        if found is not None:
            return found
    return None


def _container(part: str, parent: str, above: list[str]) -> Held | None:
    if _BARE.fullmatch(part):
        within = next((_PARENTS[one] for one in reversed(above[-2:]) if one in _PARENTS), "")
        return Held(within, part)
    scoped = _SCOPED.fullmatch(part)
    if scoped:
        prefix = (scoped[1] or "").rpartition(":")[2]  # `…podUID.slice:cri-containerd:ID`, containerd's own mistake
        return None if prefix.endswith("conmon") else Held(_RUNTIMES.get(prefix, ""), scoped[2])
    name = part.removeprefix("lxc.payload.")
    if name != part and name:
        return Held("lxc", "", name)
    if parent in ("lxc", "lxc.payload") and part:
        return Held("lxc", "", part)
    for before, after in (("machine-", ".scope"), ("systemd-nspawn@", ".service")):
        if part.startswith(before) and part.endswith(after) and len(part) > len(before) + len(after):
            name = _unescaped(part[len(before) : -len(after)])
            return None if name.startswith(("qemu-", "libpod_pod_")) else Held("systemd-nspawn", "", name)
    return None


def pod(path: str) -> str:
    """Return the uid of the innermost Kubernetes pod on a path: 8-4-4-4-12 digits, or 32 for a static pod."""
    for part in reversed(path.split("/")):
        for word in reversed(part.split(":")):
            found = _POD.search(word)
            if found:
                return found[1].replace("_", "-")
    return ""


def slurm(path: str) -> Step | None:
    """Give Slurm's job and step on a path; None for none."""
    parts = path.split("/")
    for place, part in enumerate(parts):
        if not (part == "slurm" or part.startswith("slurm_") or part.endswith("slurmstepd.scope")):
            continue
        below = parts[place + 1 :]
        job = next((found[1] for one in below if (found := _JOB.fullmatch(one))), "")
        step = next((found[1] for one in below if (found := _STEP.fullmatch(one))), "")
        if job:
            return Step(job, step)
    return None


def pbs(path: str) -> str:
    """Return the number of PBS's job on a path, `4711` or `4711[3]`; empty for none."""
    found = _PBS.search(path)
    return found[1] if found else ""


def tells(path: str) -> bool:
    """Return whether a path names a container, a pod or a batch job."""
    return bool(container(path) or pod(path) or slurm(path) or pbs(path))


def unit(path: str) -> Unit | None:
    """Return the innermost service on a path; None where that is a login, a desktop's application, or only a carrier.

    A scope below a service is no part of it: systemd makes one for what somebody else has started, such as a tab of a
    terminal or a session of tmux. Only Podman's and Slurm's own folders lie below a service and belong to it.
    """
    parts = path.split("/")
    for place in range(len(parts) - 1, -1, -1):
        part = parts[place]
        if part.endswith(".scope"):
            return None
        if not part.endswith(".service") or len(part) <= len(".service"):
            continue
        name = part[1:] if part.startswith("_") else part  # cg_escape() in systemd's cgroup-util.c
        of_user = any(_MANAGER.fullmatch(one) for one in parts[:place])
        carries = _MANAGER.fullmatch(name) or _CARRIERS.fullmatch(name) or (of_user and name.startswith("app-"))
        return None if carries else Unit(name, of_user)
    return None


def carrier(path: str) -> bool:
    """Return whether a path lies below a container runtime: a rootless one may make no cgroups of its own."""
    names = {"docker.service", "podman.service", "containerd.service", "snap.docker.dockerd.service"}
    return not names.isdisjoint(path.split("/"))


def user(path: str) -> int | None:
    """Return the uid whose login a path belongs to, by its `user-UID.slice`: the owner of a rootless container."""
    found = next((found for one in path.split("/") if (found := _USER.fullmatch(one))), None)
    return int(found[1]) if found else None


def _unescaped(name: str) -> str:
    r"""Undo systemd-escape(1): `\x2d` is `-`; what is no ASCII stays as it is."""
    return _ESCAPE.sub(lambda found: chr(code) if 0x20 <= (code := int(found[1], 16)) < 0x7F else found[0], name)
