"""Terminals and logins of processes, and the names of a real tmux's sessions and windows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.base import procfs
from gpuwatch.base.text import clean
from gpuwatch.declared.facts import RelatedProcess, Unread
from gpuwatch.inspector import context, reader, terminals
from gpuwatch.inspector.terminals import PaneNames, PanePlace
from gpuwatch.model.snapshot import Pane, ProcessContext
from tests.declared.tables import Case, cases
from tests.inspector.panes import PANE, fake, patient, session, started
from tests.support.process import fixture_process, stat_line, unavailable
from tests.support.terminal import Tmux, tmux
from tests.support.waiting import PATIENCE, Clock, wait_for

__all__ = ["tmux"]  # a fixture

pytestmark = pytest.mark.slow  # a real tmux


PYTHON = "/opt/conda/bin/python"


def pane(line: list[RelatedProcess], *, proc: Path) -> Pane | None:
    """Return the pane of a process."""
    found = terminals.find_pane(line, proc=proc)
    return None if found is None else found.pane


@cases("inspector/panes")
def test_panes_by_the_environment(tmp_path: Path, case: Case) -> None:
    """Where the server is no ancestor (any more): whether it runs is told by its number and name."""
    for pid, comm in ((5, b"python"), (7, b"tmux: server"), (8, b"screen"), (9, b"bash")):
        fixture_process(tmp_path, pid, stat_line(comm=comm))
    found = pane([RelatedProcess(pid=5, environ=case["environ"])], proc=tmp_path)
    assert (found and [found.program, found.session, found.window, found.alive]) == case["pane"]


def test_numbers_of_another_pid_namespace_are_not_ours(tmp_path: Path) -> None:
    folder = fixture_process(tmp_path, 5, stat_line())
    (folder / "status").write_text("Name:\tx\nUid:\t1\t1\t1\t1\nNSpid:\t5\t1\n")
    fixture_process(tmp_path, 7, stat_line(comm=b"tmux: server"))
    found = pane([RelatedProcess(pid=5, environ={"TMUX": "/t,7,0"})], proc=tmp_path)
    assert found == Pane(program="tmux", session="$0", alive=None)
    assert procfs.read_own_pid(5, tmp_path) == (1, False)


def test_ssh_logins() -> None:
    above = RelatedProcess(pid=2, environ={"SSH_CONNECTION": "10.0.0.7 51234 10.0.0.1 22"})
    for environ, expected in (
        ({"SSH_CLIENT": "fe80::1%eth0 5 22"}, "fe80::1%eth0"),
        ({"SSH_CONNECTION": "\x1b[31m 1 2 3"}, ""),
        ({"SSH_CONNECTION": "UNKNOWN 65535 UNKNOWN 65535"}, ""),
        (Unread.DENIED, ""),
    ):
        own = RelatedProcess(pid=1, environ=environ)
        assert terminals.find_ssh([own]) == expected
        assert terminals.find_ssh([own, above]) == (expected or "10.0.0.7")
    job = {"SLURM_JOB_ID": "7", "SSH_CONNECTION": "10.0.0.8 51234 10.0.0.1 22"}
    assert not terminals.find_ssh([RelatedProcess(pid=1, environ=job)]), "where the job was submitted"


def server(tmux: Tmux) -> int:
    """Return the server's PID."""
    return int(tmux.run("display-message", "-p", "#{pid}"))


def found(pid: int, names: PaneNames | None) -> ProcessContext:
    """Return where a process runs."""
    return context.read_context(reader.read(pid), panes=names)


def shown(pid: int, names: PaneNames | None) -> tuple[str, str]:
    """Give session and window of a process."""
    pane = found(pid, names).pane
    assert pane is not None
    assert pane.alive
    return pane.session, pane.window


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[PanePlace]:
    """Return the place of a server, of which only a socket is there."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
        yield PanePlace(PANE, 7, str(path))


def test_names_of_a_real_tmux(tmux: Tmux) -> None:
    first = session(tmux)
    second = started(tmux, "new-window", "-d", "-n", "eval 日本", "-t", "train:7")
    names = patient()
    assert shown(first, names) == ("train", "0:main")
    assert shown(second, names) == ("train", "7:eval 日本")
    assert shown(second, None) == ("$0", "%1")
    assert found(second, names).where == "tmux train 7:eval 日本"
    assert found(second, names).words == found(second, None).words


def test_hostile_names_are_clean_and_cut(tmux: Tmux) -> None:
    window = "w\n1 %0 $0 0:a:b \x1b]0;x\x07\u202e" + "x" * 90
    pid = session(tmux, "e:v.il\x1b[31m\t", "first")
    tmux.run("rename-window", window)
    session_name, window_name = shown(pid, patient())
    assert session_name == "e_v_il\\033[31m\\t"
    assert window_name.startswith("0:w\\n1 %0 $0 0:a:b")
    assert window_name == clean(window_name)
    assert len(window_name) == len("0:") + terminals.LONGEST


def test_what_is_renamed_and_moved_shows_after_a_while(tmux: Tmux) -> None:
    clock = Clock()
    pid = session(tmux)
    session(tmux, "other", "side")
    names = patient(clock=clock)
    assert shown(pid, names) == ("train", "0:main")
    tmux.run("rename-session", "-t", "train", "run 2")
    assert shown(pid, names) == ("train", "0:main")
    clock.now += terminals.FRESH
    assert shown(pid, names) == ("run 2", "0:main")
    tmux.run("move-pane", "-d", "-s", "%0", "-t", "other:0")
    clock.now += terminals.FRESH
    assert shown(pid, names) == ("other", "0:side")


def test_the_server_of_a_killed_tmux_is_not_asked(tmux: Tmux) -> None:
    pid = int(tmux.run("new-session", "-d", "-P", "-F", "#{pane_pid}", "sh -c 'trap \"\" HUP; exec sleep 600'"))
    wait_for(lambda: procfs.read_stat(pid).comm == b"sleep")
    was = server(tmux)
    try:
        tmux.run("kill-server")
        wait_for(lambda: not (procfs.PROC / str(was)).exists())
        around_it = found(pid, patient())
        assert around_it.pane == Pane(program="tmux", session="$0", window="%0", alive=False)
        assert "name" not in around_it.words
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_server_that_hangs_is_left_alone_for_a_minute(tmux: Tmux) -> None:
    clock = Clock()
    pid = session(tmux)
    number = server(tmux)
    names = PaneNames(0.5, clock=clock)
    os.kill(number, signal.SIGSTOP)
    try:
        around_it = found(pid, names)
    finally:
        os.kill(number, signal.SIGCONT)
    assert around_it.pane == PANE
    assert around_it.words.endswith("its pane's name: tmux does not answer within 0.5 s")
    clock.now += terminals.SILENT - 1
    assert found(pid, names).pane == PANE
    clock.now += 1
    assert shown(pid, patient(clock=clock)) == shown(pid, names) == ("train", "0:main")


def test_panes_of_others_are_not_asked_about(tmux: Tmux) -> None:
    pid = session(tmux)
    other = patient(uid=os.geteuid() + 1)
    assert found(pid, other).pane == PANE
    assert "name" not in found(pid, other).words
    place = PanePlace(PANE, server(tmux), tmux.run("display-message", "-p", "#{socket_path}").strip())
    with pytest.raises(OSError, match=f"a socket of uid {os.geteuid() + 1}"):
        other.find(place)


def test_how_it_is_called(tmp_path: Path, listening: PanePlace) -> None:
    """Without a shell and without anything to read; its words are taken as bytes."""
    mark = tmp_path / "mark"
    script = f"printf '%s\\n' $# \"$@\" > {mark}; cat >> {mark}\n"
    script += "printf '7 %%0 $0 2:tr\\033ain:e\\377val\\n'"
    pane = patient(path=f"relative::{tmp_path}/none:{fake(tmp_path, script)}").find(listening)
    assert (pane.session, pane.window) == (clean("tr\x1bain"), "2:e\N{REPLACEMENT CHARACTER}val")
    lines = mark.read_text().splitlines()
    assert lines[:7] == ["7", "-u", "-S", listening.socket, "list-panes", "-a", "-F"]
    assert len(lines) == 8


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exec >&- 2>&-; sleep 600 & echo $! > {mark}; sleep 600", "tmux does not answer within 0.3 s"),
        ("echo $$ > {mark}; exec yes '7 %0 $0 0:a:b'", "tmux does not answer within 0.3 s"),
        ("printf 'odd\\n\\033[31mno\\377' >&2; exit 3", "tmux: exit code 3$"),
        ("kill -9 $$", "tmux: signal 9"),
    ],
)
def test_a_tmux_that_fails_is_ended_with_all_that_it_started(
    tmp_path: Path, listening: PanePlace, script: str, words: str
) -> None:
    mark, clock = tmp_path / "mark", Clock()
    script = f"echo run >> {tmp_path}/runs; " + script.format(mark=mark)
    names = PaneNames(0.3 if "0.3" in words else PATIENCE, path=fake(tmp_path, script), clock=clock)
    for _ in range(2):
        with pytest.raises(OSError, match=words) as raised:
            names.find(listening)
        assert str(raised.value) == clean(str(raised.value))
        clock.now += terminals.SILENT / 2
    if mark.exists():
        wait_for(lambda: procfs.has_ended(int(mark.read_text())))
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_tmux_that_hangs_ends_with_the_process_that_asks_it(tmp_path: Path, listening: PanePlace) -> None:
    mark = tmp_path / "mark"
    path = fake(tmp_path, f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 600")
    asking = (
        f"from gpuwatch.inspector.terminals import PaneNames; from pathlib import Path; PaneNames(600, path={path!r})"
    )
    with subprocess.Popen([sys.executable, "-c", f"{asking}.ask(Path({listening.socket!r}))"]) as process:
        wait_for(mark.exists)
        process.kill()
    wait_for(lambda: procfs.has_ended(int(mark.read_text())))


def test_lines_that_make_no_sense_are_none_and_many_servers_are_not_all_remembered(
    tmp_path: Path, listening: PanePlace
) -> None:
    script = "printf 'x\\n7 %%0\\n8 %%0 $0 0:a:b\\n7 %%1 $0 0:a:b\\n99999999999 %%0 $0 0:a:b\\n\\n'"
    names = patient(path=fake(tmp_path, script))
    assert names.find(listening) == PANE
    for number in range(terminals.MOST + 5):
        with pytest.raises(OSError, match="No such file"):
            names.find(listening._replace(socket=str(tmp_path / f"none{number}")))
    assert len(names._answers) == terminals.MOST


def _owned_by_another(program: Path) -> None:
    if os.geteuid():
        unavailable("only root can give a file away")
    os.chown(program, 12345, 12345)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda program: program.chmod(0o722), "others can write .*/bin/tmux"),
        (lambda program: program.parent.parent.chmod(0o770), "others can write .*"),
        (lambda program: program.unlink(), "tmux is not on PATH"),
        (_owned_by_another, "belongs to uid 12345"),
    ],
)
def test_a_program_that_others_could_have_put_there_is_not_run(
    tmp_path: Path, listening: PanePlace, spoil: Callable[[Path], None], words: str
) -> None:
    outer = tmp_path / "outer"
    outer.mkdir(mode=0o700)
    folder = fake(outer, f"touch {tmp_path}/mark")
    spoil(Path(folder) / "tmux")
    with pytest.raises(OSError, match=words):
        patient(path=folder).find(listening)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.parent.chmod(0o770), "others can write"),
        (lambda path: (path.unlink(), path.touch()), "is not a socket"),
        (lambda path: path.unlink(), "No such file"),
        (_owned_by_another, "a socket of uid"),
    ],
)
def test_a_socket_that_others_could_have_put_there_is_not_used(
    tmp_path: Path, listening: PanePlace, spoil: Callable[[Path], object], words: str
) -> None:
    folder, path = fake(tmp_path, f"touch {tmp_path}/mark"), tmp_path / "sockets" / "default"
    path.parent.mkdir(mode=0o700)
    Path(listening.socket).rename(path)
    spoil(path)
    for name, expected in ((str(path), words), ("default", "TMUX does not name a socket")):
        with pytest.raises(OSError, match=expected):
            patient(path=folder).find(listening._replace(socket=name))
    assert not (tmp_path / "mark").exists()
