"""Facts of processes: what /proc has of them, of their environments, and of those above and below them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.base import procfs
from gpuwatch.declared.facts import Share, Unread
from gpuwatch.inspector import files, reader
from gpuwatch.inspector.credentials import Owner, read_account, read_owner
from tests.declared.tables import Case, cases
from tests.inspector.evidence import SOURCE, script_of, seen
from tests.sampler.test_large_processes import many_threads
from tests.support.process import LAUNCHER, fixture_process, sharing, stat_line, until_asleep
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow  # real processes


def test_the_facts_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    given = {"CUDA_VISIBLE_DEVICES": "1"}
    share = Share(user="ada", share=0.5)
    words = ("-u", "train.py", "--lr", "0.1", "two words", "a\nb", "", "\udcff", "é")
    with sharing(*words, environ=given, cwd=tmp_path) as process:
        facts = reader.read(process.pid, user="ada", shares=[share], scan=seen)
    assert facts.argv[1:] == words
    assert (facts.pid, facts.uid, facts.user) == (process.pid, os.getuid(), "ada")
    assert not isinstance(facts.environ, Unread)
    assert facts.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert not isinstance(facts.libraries, Unread)
    assert any(name.startswith("libc.so") for name in facts.libraries)
    assert not any("/" in name or name.endswith("(deleted)") for name in facts.libraries)
    assert script_of(facts) == ("train.py", SOURCE)
    assert facts.script is not None
    assert (facts.script.edited, facts.script.likely) == (False, False)
    assert facts.shares == (share,)
    assert facts.ancestors[0].pid == os.getpid()


def test_a_zombie_has_no_environment_any_more_and_one_that_has_gone_raises() -> None:
    process = subprocess.Popen(["true"])
    wait_for(lambda: procfs.read_stat(process.pid).state == "Z")
    facts = reader.read(process.pid)
    assert (facts.argv, facts.environ) == ((), Unread.ENDED)
    process.wait()
    with pytest.raises(procfs.GONE):
        reader.read(process.pid)


@pytest.mark.parametrize(
    ("state", "threads", "end", "expected"),
    [
        *(("Z", "Z", 0, Unread.ENDED), ("Z", "ZS", 0, Unread.FAILED), ("X", "X", 0, Unread.ENDED)),
        *(("R", "R", 0, Unread.FAILED), ("S", "S", 4096, {})),
    ],
    ids=["zombie", "only its first thread has ended", "dead", "in execve", "started without one"],
)
def test_an_empty_environment_is_one_only_where_there_is_one(
    tmp_path: Path, state: str, threads: str, end: int, expected: object
) -> None:
    """A kernel before 6.16 shows a zombie's as empty; every one shows that of a process in execve so."""
    line = stat_line(state=state).rstrip().split(b" ")
    line[50] = b"%d" % end
    fixture_process(tmp_path, 7, b" ".join(line), threads=threads)
    (tmp_path / "7/environ").write_bytes(b"")
    assert reader._variables(reader._read_environ(7, tmp_path, procfs.read_stat(7, tmp_path))) == expected


def test_a_process_that_goes_while_it_is_read(tmp_path: Path) -> None:
    fixture_process(tmp_path, 7, stat_line(ppid=3))
    (tmp_path / "7/status").write_text("Uid:\t1000\t1000\t1000\t1000\nGid:\t5\t5\t5\t5\nFDSize:\t64\nGroups:\t7 8 \n")
    (tmp_path / "7/task/7/children").write_text("8 9 ")
    (tmp_path / "8").mkdir()
    (tmp_path / "8/environ").write_bytes(b"A=1\0")
    facts = reader.read(7, proc=tmp_path, user="ada")
    assert (facts.uid, facts.argv, facts.cgroup, facts.script) == (1000, (), "", None)
    assert (facts.environ, facts.libraries) == (Unread.ENDED, Unread.ENDED)
    assert (facts.ancestors, facts.children) == ((), ())
    assert read_owner(7, tmp_path) == Owner(1000, 5, (7, 8))


@pytest.mark.parametrize(
    ("lines", "name"),
    [(40_000, b"/usr/lib/libcudart.so.12"), (400_000, b"/tmp/data"), (8_000, b"/usr/lib/libnumber%d.so")],
    ids=["the libraries come last", "more than is read", "more libraries than are kept"],
)
def test_a_long_list_of_mappings(tmp_path: Path, lines: int, name: bytes) -> None:
    fixture_process(tmp_path, 7, stat_line(ppid=0))
    (tmp_path / "7/status").write_text("Uid:\t1\t1\t1\t1\nGid:\t5\t5\t5\t5\n")
    with (tmp_path / "7/maps").open("wb") as file:
        for number in range(lines):
            last = name % number if b"%" in name else name if number in (0, lines - 1) else b"/usr/share/a.file"
            file.write(b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0                          %s\n" % last)
    libraries = reader.read(7, proc=tmp_path, user="ada").libraries
    assert libraries == (frozenset({"libcudart.so.12"}) if lines == 40_000 else Unread.TOO_LONG)


def test_the_owner_is_named_by_the_user_database() -> None:
    assert reader.read(os.getpid()).user in (read_account(os.getuid())[0], str(os.getuid()))
    assert read_account(3_999_999_999) == ("3999999999", "")


def test_ancestors_with_their_arguments_and_environments() -> None:
    given = {"CUDA_VISIBLE_DEVICES": "1"}
    with sharing("serve.py", "--gpu-memory-utilization", "0.4", environ=given, first=LAUNCHER) as server:
        facts = reader.read(int(server.said[0]))
    parent, *others = facts.ancestors
    assert (parent.pid, parent.argv[2:]) == (server.pid, ("--gpu-memory-utilization", "0.4"))
    assert not isinstance(parent.environ, Unread)
    assert parent.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert others[0].pid == os.getpid()
    assert facts.environ == {"A": "1"}


def test_one_whose_first_thread_has_ended_is_not_said_to_have_ended() -> None:
    with many_threads(2) as pid:
        facts = reader.read(pid, scan=seen)
    assert facts.environ is Unread.FAILED
    assert facts.libraries is not Unread.ENDED


def test_children_that_have_only_forked_or_ended_do_not_hide_one_that_shows_more() -> None:
    first = """
os.environ["CUDA_VISIBLE_DEVICES"] = "2"
for _ in range(12):
    if not os.fork():
        os.read(0, 1)
        os._exit(0)
if not os.fork(): os._exit(0)
run(os.environ)
"""
    with sharing("train.py", environ={"CUDA_VISIBLE_DEVICES": "0"}, first=first) as process:
        until_asleep(int(process.said[0]))
        (child,) = reader.read(process.pid).children
    assert (child.pid, child.argv) == (int(process.said[0]), ("sleep", "600"))
    assert not isinstance(child.environ, Unread)
    assert child.environ["CUDA_VISIBLE_DEVICES"] == "2"


def test_long_lines_of_ancestors_and_of_children_are_cut() -> None:
    code = (
        "import os\nfor _ in range(24):\n    if os.fork(): os.wait(); os._exit(0)\nos.write(1, b'%d\\n' % os.getpid())"
    )
    with sharing("train.py", first=f"if not os.fork():\n    exec({code!r})\n    keep()\nos.read(0, 1)") as process:
        assert len(reader.read(int(process.said[0])).ancestors) == 16
    with sharing("train.py", first="for number in range(12): run({'N': str(number)})") as process:
        until_asleep(*map(int, process.said))
        assert len(reader.read(process.pid).children) == 8


@cases("inspector/cgroup_files")
def test_the_cgroup_that_says_most(tmp_path: Path, case: Case) -> None:
    """A runtime may keep its containers in hierarchies of version 1, and its own unit in that of version 2."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(case["text"])
    assert reader._read_cgroup(7, tmp_path) == case["cgroup"]
    assert reader._read_cgroup(8, tmp_path) == ""


NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & set(b"=\0"))
VALUES = st.binary(max_size=40).filter(lambda value: 0 not in value)


@cases("inspector/environs")
def test_a_block_is_an_environment_or_was_overwritten(case: Case) -> None:
    """A title that setproctitle wrote over it is followed by NULs; the first of two equal names is what counts."""
    block = case["block"].encode() + bytes(case.get("padding", 0))
    assert files.parse_environ(block) == case["environ"]


@given(st.lists(st.tuples(NAMES, VALUES), max_size=20))
def test_what_was_written_is_read_again(pairs: list[tuple[bytes, bytes]]) -> None:
    found = files.parse_environ(b"".join(name + b"=" + value + b"\0" for name, value in pairs))
    assert not isinstance(found, Unread)
    expected: dict[bytes, bytes] = {}
    for name, value in pairs:
        expected.setdefault(name, value)
    assert {files.encode_environ(name): files.encode_environ(value) for name, value in found.items()} == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_an_environment_or_none(block: bytes) -> None:
    found = files.parse_environ(block)
    assert found is Unread.OVERWRITTEN or isinstance(found, dict)


@pytest.mark.parametrize(("size", "number"), [(1000, 100), (100_000, 3)])
def test_a_large_environment_is_read_to_its_end_and_one_that_is_too_long_is_not(size: int, number: int) -> None:
    filler = {f"FILLER_{place}": "x" * size for place in range(number)}
    with sharing("train.py", environ={**filler, "XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"}) as process:
        found = reader.read(process.pid).environ
    if number == 3:
        assert found is Unread.TOO_LONG
    else:
        assert not isinstance(found, Unread)
        assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == ".3"


@pytest.mark.parametrize("title", ["VLLM::EngineCore", "worker --share=0.4 " + "x" * 60])
def test_a_title_over_the_environment_hides_it(title: str) -> None:
    first = f"set_title({title.encode()!r})\nassert os.environ['CUDA_VISIBLE_DEVICES'] == '1'"
    given = {"CUDA_VISIBLE_DEVICES": "1", "FILLER": "x" * 400}
    with sharing("train.py", environ=given, first=first) as process:
        facts = reader.read(process.pid)
    assert facts.environ is Unread.OVERWRITTEN
    assert facts.argv[0].startswith(title[:16])
