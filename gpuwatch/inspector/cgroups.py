r"""Parser of cgroup paths: the container, pod, batch job and systemd unit that a path names. Never raises.

The path is as /proc/PID/cgroup has it, seen from our own cgroup namespace: it may begin with `/../..`. Names in the
results are raw: not clean. Sources of the paths:

- Docker: `/docker/ID` (cgroupfs) and `/system.slice/docker-ID.scope` (systemd), docs.docker.com, runtime metrics
- Podman: `libpod-ID.scope/container`, and `libpod-payload-ID` under a unit (`--cgroups=split`), podman-run(1); in a pod
  below `machine-libpod_pod_ID.slice`, or `user-…` (systemd), else `/libpod_parent/ID`, libpod/runtime_pod_linux.go
- Kubernetes: `kubepods-burstable-podUID.slice/cri-containerd-ID.scope` with `_` for `-` in the uid (systemd), else
  `/kubepods/burstable/podUID/ID`, pkg/kubelet/cm/cgroup_manager_linux.go
- LXC, Incus: `/lxc.payload.NAME` and before LXC 4 `/lxc/NAME`, lxc.container.conf(5), lxc.cgroup.dir.container
- systemd-nspawn: `machine-NAME.scope` and `systemd-nspawn@NAME.service`, with escapes as `\x2d`, systemd-nspawn(1)
- Slurm: `/slurm/uid_U/job_J/step_S/task_T` and `…slurmstepd.scope/job_J/step_S/user/task_T`, slurm.schedmd.com
- PBS: `/pbs_jobs.service/jobid/NUMBER.SERVER`, OpenPBS' pbs_cgroups.PY, `cgroup_prefix`
- units: `system.slice/NAME.service`, and below `user@UID.service` those of a user's own manager, systemd.slice(5)
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

_MOST = 32
"""Paths whose parts are kept: the processes of one user mostly lie in one cgroup."""

_HEX = r"[0-9a-f]{64}"
_BARE = re.compile(_HEX)
_SCOPED = re.compile(rf"(?:(.+?)[-:])?({_HEX})(?:\.scope)?")
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$")
_PODMAN_POD = re.compile(rf"/(?:[a-z]+-libpod_pod_({_HEX})\.slice|libpod_parent/({_HEX}))/libpod-")
_JOB = r"job_(\d{1,10})"
_STEP = r"step_([a-z0-9+]{1,20})"
_PBS = re.compile(r"/(?:pbs_jobs|pbspro|pbs)(?:\.service|\.slice)?/jobid/(\d{1,10}(?:\[\d{1,10}\])?)")
_USER = r"user-(\d{1,10})\.slice"
_MANAGER = r"user@\d{1,10}\.service"
_NSPAWN = re.compile(r"machine-(.+)\.scope|systemd-nspawn@(.+)\.service")
_ESCAPE = r"\\x([0-9a-f]{2})"

_RUNTIMES = {
    "docker": "docker",
    "libpod": "podman",
    "libpod-payload": "podman",
    "crio": "cri-o",
    "cri-containerd": "containerd",
    "containerd": "containerd",
    "nerdctl": "containerd",
}
"""Runtime by the prefix of a container's id."""

_PARENTS = {"docker": "docker", "moby": "docker", "ecs": "docker", "libpod_parent": "podman", "default": "containerd"}
"""Runtime by the folder in which an id without a prefix lies: `default` is containerd's namespace."""

_SHARED_SERVICES = r"""(?x)(?:
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
"""Services below which people start programs: logins, desktops, schedulers, container runtimes.

Among them are a desktop's terminals (gnome-terminal-server), and the applications that a desktop starts as
`app-NAME@….service` in a user's own manager (systemd.io/DESKTOP_ENVIRONMENTS).
"""

_RUNTIME_SERVICES = {"docker.service", "podman.service", "containerd.service", "snap.docker.dockerd.service"}


class ContainerId(NamedTuple):
    """Container that a cgroup path names."""

    runtime: str
    """Name of the runtime; empty where the path does not show it."""
    id: str
    """All 64 digits of the id; empty where the runtime uses names."""
    name: str = ""


class SlurmStep(NamedTuple):
    """Slurm's job and step; `step` is empty outside of a step."""

    job: str
    step: str


class SystemdUnit(NamedTuple):
    """Systemd service by its name for systemctl, and whether it belongs to a user's own manager."""

    name: str
    user: bool


@functools.lru_cache(_MOST)
def parse_container(path: str) -> ContainerId | None:
    """Return the innermost container on a path; None where there is none."""
    parts = path.split("/")
    for place in range(len(parts) - 1, -1, -1):
        found = _parse_part(parts[place], parts[:place])
        if found is not None:
            return found
    return None


def _parse_part(part: str, above: list[str]) -> ContainerId | None:
    if _BARE.fullmatch(part):
        return ContainerId(next((_PARENTS[one] for one in reversed(above[-2:]) if one in _PARENTS), ""), part)
    scoped = _SCOPED.fullmatch(part)
    if scoped:
        prefix = (scoped[1] or "").rpartition(":")[2]  # `…podUID.slice:cri-containerd:ID`, containerd's own mistake
        return None if prefix.endswith("conmon") else ContainerId(_RUNTIMES.get(prefix, ""), scoped[2])
    name = part.removeprefix("lxc.payload.")
    if part and (name != part or above[-1:] in (["lxc"], ["lxc.payload"])):
        return ContainerId("lxc", "", name) if name else None
    found = _NSPAWN.fullmatch(part)
    if found:
        name = _unescape(found[1] or found[2])
        return None if name.startswith(("qemu-", "libpod_pod_")) else ContainerId("systemd-nspawn", "", name)
    return None


@functools.lru_cache(_MOST)
def parse_pod(path: str) -> str:
    """Return the uid of the innermost Kubernetes pod on a path: 8-4-4-4-12 digits, or 32 for a static pod."""
    found = (_POD.search(word) for part in reversed(path.split("/")) for word in reversed(part.split(":")))
    return next((one[1].replace("_", "-") for one in found if one), "")


def parse_podman_pod(path: str) -> str:
    """Return the id of Podman's pod of a container on a path, 64 digits; empty where there is none."""
    found = _PODMAN_POD.search(path)
    return (found[1] or found[2]) if found else ""


@functools.lru_cache(_MOST)
def parse_slurm(path: str) -> SlurmStep | None:
    """Return Slurm's job and step on a path; None where there is none."""
    parts = path.split("/")
    for place, part in enumerate(parts):
        if part == "slurm" or part.startswith("slurm_") or part.endswith("slurmstepd.scope"):
            below = parts[place + 1 :]
            job = next((found[1] for one in below if (found := re.fullmatch(_JOB, one))), "")
            step = next((found[1] for one in below if (found := re.fullmatch(_STEP, one))), "")
            if job:
                return SlurmStep(job, step)
    return None


def parse_pbs(path: str) -> str:
    """Return the number of PBS's job on a path, `4711` or `4711[3]`; empty where there is none."""
    found = _PBS.search(path)
    return found[1] if found else ""


def has_owner(path: str) -> bool:
    """Return whether a path names a container, a pod or a batch job."""
    return bool(parse_container(path) or parse_pod(path) or parse_slurm(path) or parse_pbs(path))


@functools.lru_cache(_MOST)
def parse_unit(path: str) -> SystemdUnit | None:
    """Return the innermost service on a path; None for a login, a desktop's application, or a shared service.

    A scope below a service is no part of it: systemd makes one for programs that somebody else has started, such as a
    tab of a terminal or a session of tmux. Only Podman's and Slurm's own folders lie below a service and belong to it.
    """
    parts = path.split("/")
    for place in range(len(parts) - 1, -1, -1):
        part = parts[place]
        if part.endswith(".scope"):
            return None
        if not part.endswith(".service") or len(part) <= len(".service"):
            continue
        name = part[1:] if part.startswith("_") else part  # cg_escape() in systemd's cgroup-util.c
        of_user = any(re.fullmatch(_MANAGER, one) for one in parts[:place])
        shared = (
            re.fullmatch(_MANAGER, name)
            or re.fullmatch(_SHARED_SERVICES, name)
            or (of_user and name.startswith("app-"))
        )
        return None if shared else SystemdUnit(name, of_user)
    return None


def is_below_runtime(path: str) -> bool:
    """Return whether a path lies below a container runtime: a rootless runtime may create no cgroups."""
    return not _RUNTIME_SERVICES.isdisjoint(path.split("/"))


def parse_user(path: str) -> int | None:
    """Return the uid of the login that a path belongs to (`user-UID.slice`): the owner of a rootless container."""
    found = next((found for one in path.split("/") if (found := re.fullmatch(_USER, one))), None)
    return int(found[1]) if found else None


def _unescape(name: str) -> str:
    r"""Undo systemd-escape(1): `\x2d` becomes `-`; only escapes of printable ASCII are undone."""
    return re.sub(_ESCAPE, lambda found: chr(code) if 0x20 <= (code := int(found[1], 16)) < 0x7F else found[0], name)
