"""Whoever asks what a well-known program is gets one answer: the sampler's runs, the servers, orphans, and `kill`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch import procfs, programs
from gpuwatch.declared.facts import Facts, RelatedProcess
from gpuwatch.inspector import program, servers
from gpuwatch.inspector.program import Part
from tests.kill.test_kill_scope import BOTH, PYTHON, above_two, taken
from tests.sampler.test_owners import related
from tests.support.families import Member, family

TASK_RUNNERS_AND_PAGES = {"celery", "voila"}
"""They serve requests, so what they fork is a server's, though each task or page is a run of its own."""

KEEPERS = sorted(
    programs.INITS
    | programs.CONTAINER_INITS
    | programs.MANAGERS
    | programs.MULTIPLEXERS
    | programs.LOGINS
    | programs.NOTEBOOK_SERVERS
)
EVERY_ONE = sorted({*KEEPERS, *programs.TERMINALS, *programs.EDITORS, "containerd-shim-runc-v2", "init(Ubuntu)"})


def part(*argv: str) -> Part:
    """Return the part that a program above a training has in its run."""
    return program.find_role(RelatedProcess(pid=7, argv=argv)).part


def is_a_servers(*above: str) -> bool:
    """Whether a process is taken for a part of a web server that stands above these."""
    ancestors = tuple(
        RelatedProcess(pid=pid, argv=tuple(line.split())) for pid, line in enumerate((*above, "gunicorn app"), 8)
    )
    return bool(servers.server(Facts(pid=7, argv=("python", "t.py"), ancestors=ancestors), proc=Path("/nonexistent")))


@pytest.mark.parametrize("name", EVERY_ONE)
def test_no_run_begins_with_what_starts_unrelated_programs_and_no_server_is_seen_through_it(name: str) -> None:
    assert part(f"/usr/bin/{name}") is Part.ENDS
    assert not is_a_servers(f"/usr/bin/{name}") or name in TASK_RUNNERS_AND_PAGES


@pytest.mark.parametrize("name", sorted(programs.SHELLS))
def test_a_shell_ends_a_run_or_passes_it_on_and_no_server_is_seen_through_it(name: str) -> None:
    assert part(f"/usr/bin/{name}") is Part.ENDS
    assert part(f"/usr/bin/{name}", "sweep.sh", "1") is Part.PASSES
    assert not is_a_servers(f"/usr/bin/{name} sweep.sh")
    assert not is_a_servers(name)


@pytest.mark.parametrize("name", sorted(programs.USER_SWITCHES))
def test_what_switches_the_user_passes_a_run_on_and_no_server_is_seen_through_it(name: str) -> None:
    assert part(f"/usr/bin/{name}", "-u", "ada", "python") is Part.PASSES
    assert not is_a_servers(f"{name} -u ada python")


def test_a_server_is_seen_through_what_only_wraps_a_command() -> None:
    assert is_a_servers("python worker.py", "timeout 100 python worker.py")


@pytest.mark.parametrize("name", sorted({*programs.INITS, "init(Ubuntu)"}))
def test_what_an_init_has_for_a_child_was_left_to_it(name: str, tmp_path: Path) -> None:
    for pid, parent in ((7, 1), (1, 0)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_bytes(related("python" if pid == 7 else name, parent, pid, 1))
    assert procfs.adopted(7, procfs.read_stat(7, tmp_path), tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("tmux: server", "SCREEN", "zellij", "dtach", "abduco", "jupyter-lab", "batchspawner-singleuser"),
        *(
            "runit",
            "s6-svscan",
            "docker-init",
            "podman-init",
            "catatonit",
            "cron",
            "runsvdir",
            "containerd-shim-runc-v2",
        ),
    ],
)
def test_what_keeps_sessions_is_not_ended_with_the_run_that_started_it(name: str, tmp_path: Path) -> None:
    """Below a training's program: a multiplexer, an init, a service manager, and in it somebody's other training."""
    other = Member("b", (PYTHON, "b.py"), leads=True)
    keeper = Member("keeper", (f"/usr/bin/{name}",), comm=name[:15], children=(other,))
    own = Member("a", (PYTHON, "a.py"))
    with family(Member("main", (PYTHON, "sweep.py"), children=(own, keeper))) as tree:
        assert taken(tree, tmp_path, "a") == {"main", "a"}


@pytest.mark.parametrize("name", ["bash", "ash", "ksh93", "rbash", "busybox", "nu", "elvish", "pwsh"])
def test_a_shell_with_a_script_below_an_agent_is_no_head_of_a_run(name: str, tmp_path: Path) -> None:
    agent = above_two(("/opt/lab/bin/jobd", "--queue", "gpu"))
    agent.children = tuple(
        Member(f"{child.name}-script", (name, "sweep.sh"), comm=name, leads=True, children=(child,))
        for child in agent.children
    )
    with family(agent) as tree:
        assert taken(tree, tmp_path, BOTH[0]) == {"a"}
