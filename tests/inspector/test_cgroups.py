r"""Where a process runs, by its cgroup: paths as each runtime documents them.

The paths are those of docs.docker.com (runtime metrics), podman-run(1) and Podman's own issues (`--cgroups=split`),
the kubelet's cgroup_manager_linux.go, lxc.container.conf(5), systemd-nspawn(1), slurm.schedmd.com/cgroup_v2.html,
systemd.slice(5) and systemd.io/DESKTOP_ENVIRONMENTS; none was recorded on this machine.
"""

from __future__ import annotations

from gpuwatch.inspector import cgroups
from gpuwatch.model.snapshot import ProcessContext, is_service
from tests.declared.tables import Case, cases

ID = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970"
OTHER = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d"
POD = "1fb25a5c-2a6e-4b9c-8f0e-0d1a2b3c4d5e"
BELOW = POD.replace("-", "_")
USER = "/user.slice/user-1000.slice/user@1000.service"
PARSERS = {
    "container": cgroups.parse_container,
    "pod": cgroups.parse_pod,
    "slurm": cgroups.parse_slurm,
    "unit": cgroups.parse_unit,
}


@cases("inspector/cgroups")
def test_what_a_path_says(case: Case) -> None:
    """`container` has runtime, id and name, `slurm` job and step, `unit` its name and whether it is a user's."""
    for name in case.keys() - {"path"}:
        found = PARSERS[name](case["path"])
        assert (list(found) if isinstance(found, tuple) else found) == case[name], name


def test_a_notebook_below_a_unit_is_not_its_service() -> None:
    names = ("jupyterhub", "jupyter", "jupyter-ada", "code-server@ada", "code-tunnel")
    for unit in (*(f"{name}.service" for name in names), ""):
        assert not is_service(unit)
        assert not ProcessContext(unit=unit).service
    assert ProcessContext(unit="ollama.service").service


def test_whose_login_a_path_lies_in() -> None:
    assert cgroups.parse_user(f"{USER}/user.slice/libpod-{ID}.scope") == 1000
    assert cgroups.parse_user(f"/machine.slice/libpod-{ID}.scope") is None
