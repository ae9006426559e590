"""The sources and the configuration files of real processes: what is found, and what is never opened or waited for."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpuwatch.base import procfs
from gpuwatch.declared.facts import Facts, Script, Unread
from gpuwatch.inspector import files, reader
from gpuwatch.inspector.credentials import read_account
from tests.inspector.evidence import SOURCE, script_of, seen
from tests.support.process import LAUNCHER, sharing, sleeping
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow  # real processes


@pytest.mark.parametrize(
    ("argv", "place", "expected"),
    [
        (["-c", "import torch"], "train.py", ("-c", "import torch")),
        (["-m", "pkg.train"], "pkg/train.py", ("pkg/train.py", SOURCE)),
        (["-m", "pkg.train"], "pkg/train/__main__.py", ("pkg/train/__main__.py", SOURCE)),
        (["a\x1b[31m.py"], "a\x1b[31m.py", ("a\N{REPLACEMENT CHARACTER}[31m.py", SOURCE)),
    ],
)
def test_a_source_under_the_working_directory(
    tmp_path: Path, argv: list[str], place: str, expected: tuple[str, str]
) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text(SOURCE)
    with sharing(*argv, cwd=tmp_path) as process:
        assert script_of(reader.read(process.pid, scan=seen)) == expected


@pytest.mark.parametrize("name", ["vllm.entrypoints", "../pkg", "pkg..train", ""])
def test_a_module_elsewhere_is_none_of_the_users(tmp_path: Path, name: str) -> None:
    (tmp_path / "pkg.py").write_text(SOURCE)
    (tmp_path / "here").mkdir()
    with sharing("-m", name, cwd=tmp_path / "here") as process:
        assert reader.read(process.pid, scan=seen).script is None


def test_a_script_that_was_edited_after_the_start(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    earlier = time.time() - 3600
    os.utime(path, (earlier, earlier))
    first = (
        "r, w = os.pipe()\nfork = os.fork()\nif fork: print(fork, flush=True); os.write(w, b'.')\nelse: os.read(r, 1)"
    )
    with sharing("train.py", cwd=tmp_path, first=first) as process:
        scripts = [reader.read(pid, scan=seen).script for pid in (process.pid, int(process.said[0]))]
        assert [script.edited for script in scripts if script] == [False, False]
        later = time.time() + 3600
        os.utime(path, (later, later))
        scripts = [reader.read(pid, scan=seen).script for pid in (process.pid, int(process.said[0]))]
        assert [script.edited for script in scripts if script] == [True, True]


def test_what_is_no_ordinary_file_is_not_even_opened(tmp_path: Path) -> None:
    """Opening does something: a watchdog restarts the machine. A FIFO tells, its writer waits for who opens it."""
    os.mkfifo(tmp_path / "train.py")
    writer = subprocess.Popen(["sh", "-c", "echo waits > train.py"], cwd=tmp_path, start_new_session=True)
    try:
        with sharing("train.py", cwd=tmp_path) as process:
            wait_for(
                lambda: b"fifo" in procfs.read_file(writer.pid, "wchan") or procfs.read_stat(writer.pid).state == "S"
            )
            assert reader.read(process.pid).script == Script(path="train.py", contents=Unread.FAILED)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.2)
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.parametrize("kind", ["folder", "device", "large", "missing", "loop"])
def test_what_is_no_ordinary_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "train.py"
    if kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.write_bytes(b"#" * (2 << 20))
    elif kind != "missing":
        path.symlink_to("/dev/zero" if kind == "device" else "train.py")
    with sharing("train.py", cwd=tmp_path) as process:
        assert reader.read(process.pid, scan=seen).script == Script(path="train.py", contents=Unread.FAILED)
    # Files of the kernel are ordinary by their type, and some are used up by reading: /proc/kmsg. They have no size.
    assert files.read_file(Path("/proc/self"), "/proc/version", 1 << 20).data == b""


def test_a_worker_runs_the_source_of_the_process_above_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    code = "from multiprocessing.spawn import spawn_main; import os; os.write(1, b'x'); os.read(0, 1)"
    first = LAUNCHER.replace("import os; os.write(1, b'x'); os.read(0, 1)", code)
    with sharing("train.py", cwd=tmp_path, first=first) as process:
        facts = reader.read(int(process.said[0]), scan=seen)
    assert script_of(facts) == ("train.py", SOURCE)
    assert facts.script is not None
    assert not facts.script.likely


def test_a_process_with_a_title_runs_what_those_above_it_run(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SOURCE)
    first = (
        "if not os.fork():\n    set_title(b'VLLM::EngineCore')\n    os.write(1, b'%d\\n' % os.getpid())\n    keep()\n"
        "os.read(0, 1)"
    )
    with sharing("serve.py", cwd=tmp_path, first=first) as process:
        facts = reader.read(int(process.said[0]), scan=seen)
    assert facts.argv == ("VLLM::EngineCore",)
    assert facts.environ is Unread.OVERWRITTEN
    assert script_of(facts) == ("serve.py", SOURCE)
    assert facts.script is not None
    assert facts.script.likely


def test_a_program_that_is_no_python_has_no_script_and_may_have_no_environment() -> None:
    with sleeping() as pid:
        facts = reader.read(pid, scan=seen)
    assert (facts.script, facts.environ) == (None, {})


def homed(tmp_path: Path, *, source: str = "import theano\n", **given: str) -> Facts:
    """Read a process whose home is `tmp_path/home`, with a script."""
    (tmp_path / "train.py").write_text(source)
    environ = {"HOME": str(tmp_path / "home"), **given}
    with sharing("train.py", cwd=tmp_path, environ=environ) as process:
        return reader.read(process.pid, scan=seen)


def test_the_rc_files_of_a_home_and_those_that_theanorc_names(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".theanorc").write_text("[lib]\ncnmem=0.3\n")
    (file,) = homed(tmp_path).rc
    assert (file.path, file.text) == ("~/.theanorc", "[lib]\ncnmem=0.3\n")
    assert homed(tmp_path, source="import torch\n").rc == ()
    assert homed(tmp_path, source="import torch\n", KERAS_BACKEND="theano").rc == (file,)
    (home / "own").write_text("own")
    (tmp_path / "site").write_bytes(b"\xffsite")
    (tmp_path / "large").write_bytes(b"#" * (65 << 10))
    os.mkfifo(tmp_path / "fifo")
    listed = f"{tmp_path}/missing:{tmp_path}/fifo:{tmp_path}/large:{tmp_path}/site:~/own"
    found = [(file.path, file.text) for file in homed(tmp_path, THEANORC=listed).rc]
    assert found == [(f"{tmp_path}/site", "\N{REPLACEMENT CHARACTER}site"), ("~/own", "own")]


def test_a_home_that_the_environment_does_not_name() -> None:
    assert read_account(os.getuid())[1].startswith("/")


def test_a_kernel_without_the_newer_call_opens_by_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    monkeypatch.setattr(files, "_SYS_OPENAT2", 100_000)
    with sharing("train.py", cwd=tmp_path) as process:
        assert script_of(reader.read(process.pid, scan=seen)) == ("train.py", SOURCE)


def test_the_imports_of_equal_sources_are_parsed_once_and_others_anew(tmp_path: Path) -> None:
    sources = {"here": "import near\n", "same": "import near\n", "other": "import far\n"}
    found = {}
    reader.find_imports.cache_clear()
    for name, source in sources.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(source)
        (folder / "near.py").write_text("x = 1\n")
        (folder / "far.py").write_text("x = 1\n")
        with sharing("train.py", cwd=folder) as process:
            script = reader.read(process.pid, scan=seen).script
            found[name] = script and script.modules
    assert found == {"here": ("near.py",), "same": ("near.py",), "other": ("far.py",)}
    assert reader.find_imports.cache_info().misses == 2


OTHER = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.1)\n"
FOLDERS = {"start": SOURCE, "now": OTHER, "none": None, "same": "a link to the one at the start"}


@pytest.mark.parametrize("kind", ["script", "module", "config"])
@pytest.mark.parametrize(
    ("start", "now", "found"),
    [
        ("start", "now", Unread.MOVED),
        ("start", "same", SOURCE),
        ("start", "none", SOURCE),
        ("none", "now", OTHER),
    ],
)
def test_a_relative_path_after_the_folder_has_changed(
    tmp_path: Path, kind: str, start: str, now: str, found: str | Unread
) -> None:
    """PWD has the folder at the start; it is wrong where a launcher has chosen another: then one file is there."""
    for name, which in (("a", start), ("b", now)):
        (tmp_path / name).mkdir()
        if which == "same":
            os.link(tmp_path / "a" / "train.py", tmp_path / "b" / "train.py")
        elif (text := FOLDERS[which]) is not None:
            (tmp_path / name / "train.py").write_text(text)
    argv = {
        "script": ["train.py"],
        "module": ["-m", "train"],
        "config": ["-m", "vllm.entrypoints.openai.api_server", "--config", "train.py"],
    }
    moved = f"os.chdir({str(tmp_path / 'b')!r})"
    environ = {"PWD": str(tmp_path / "a")}
    with sharing(*argv[kind], cwd=tmp_path / "a", environ=environ, first=moved) as process:
        facts = reader.read(process.pid, scan=seen)
    if kind == "config":
        assert [one.text for one in facts.configs.values()] == [found]
    elif isinstance(found, Unread):
        assert facts.script == Script(path="train.py", contents=found)
    else:
        assert script_of(facts) == ("train.py", found)


def test_modules_are_sought_where_the_script_was_found(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "train.py").write_text("import limits\n")
    (tmp_path / "a" / "limits.py").write_text(SOURCE)
    environ = {"PWD": str(tmp_path / "a")}
    with sharing(
        "train.py", cwd=tmp_path / "a", environ=environ, first=f"os.chdir({str(tmp_path / 'b')!r})"
    ) as process:
        script = reader.read(process.pid, scan=seen).script
    assert script is not None
    assert script.modules == (f"{tmp_path}/a/limits.py",)


@pytest.mark.parametrize("how", ["mv", "cp", "cp -p", "touch -d @1000000000"])
def test_a_script_that_is_replaced_soon_after_the_start_is_not_known(tmp_path: Path, how: str) -> None:
    """As in a loop that starts one after another. The time of the entry shows what keeps the time of its content."""
    for name, text in (("train.py", SOURCE), ("new.py", OTHER)):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1e9, 1e9))
    with sharing("train.py", cwd=tmp_path) as process:
        before = reader.read(process.pid, scan=seen).script
        wait_for(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) - process.start / os.sysconf("SC_CLK_TCK") > 0.05)
        files_ = ["train.py"] if how.startswith("touch") else ["new.py", "train.py"]
        subprocess.run([*how.split(), *files_], cwd=tmp_path, check=True)
        after = reader.read(process.pid, scan=seen).script
    assert before is not None
    assert after is not None
    assert (before.edited, isinstance(before.contents, Unread)) == (False, False)
    assert after.contents is Unread.CHANGED
