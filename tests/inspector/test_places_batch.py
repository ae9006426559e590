"""Jobs of schedulers other than Slurm: what their cgroups and variables tell, and what they hand on."""

from __future__ import annotations

import pytest

from gpuwatch.declared.facts import Facts
from gpuwatch.inspector import cgroups, context
from gpuwatch.model import Surroundings
from tests.support.families import Member, family


@pytest.mark.parametrize(
    ("cgroup", "environ", "expected"),
    [
        ("/pbs_jobs.service/jobid/2404743.opbs", {}, "pbs 2404743"),
        ("/pbs_jobs.service/jobid/2404743[17].opbs", {}, "pbs 2404743[17]"),
        ("/user.slice/jobid/2404743.opbs", {}, ""),
        ("/", {"PBS_JOBID": "2404743.opbs", "PBS_ENVIRONMENT": "PBS_INTERACTIVE"}, "pbs 2404743"),
        ("/", {"LSB_JOBID": "4711"}, "lsf 4711"),
        ("/", {"JOB_ID": "4711", "SGE_ROOT": "/opt/sge"}, "sge 4711"),
        ("/", {"JOB_ID": "4711"}, ""),
        ("/", {"SGE_ROOT": "/opt/sge"}, ""),
        ("/", {"_CONDOR_SLOT": "slot1_2", "_CONDOR_JOB_AD": "/var/lib/condor/x/.job.ad"}, "condor slot1_2"),
        ("/", {"LSB_JOBID": "47\x1b[2J11"}, "lsf 47�[2J11"),
    ],
)
def test_the_job_of_another_scheduler(cgroup: str, environ: dict[str, str], expected: str) -> None:
    """By the cgroup, else by what only a job has. The unit that PBS makes for all jobs is nobody's service."""
    assert context.find_batch_job(Facts(pid=7, uid=1000, cgroup=cgroup, environ=environ)) == expected
    assert Surroundings(batch=expected, unit="x.service").where == (expected or "x")
    assert cgroups.parse_unit(cgroup) is None


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURMD_NODENAME": "gpu1"},
        {"PBS_JOBID": "2404743.opbs", "PBS_ENVIRONMENT": "PBS_BATCH"},
        {},
    ],
)
def test_a_kernel_in_a_batch_job_is_not_left_by_a_server_that_is_not_here(environ: dict[str, str]) -> None:
    """It was handed the number of the server of the notebook that it was submitted from, on another machine."""
    file = "/home/ada/.local/share/jupyter/runtime/kernel-8f2a9c11.json"
    argv = ("/opt/conda/bin/python", "-m", "ipykernel_launcher", "-f", file)
    with family(Member("kernel", argv, {"JPY_PARENT_PID": "4194301", **environ}, leads=True)) as tree:
        around = tree.around("kernel")
    assert bool(around.batch_job) == bool(environ)
    assert around.notebook is not None
    assert around.notebook.left == (not environ)
