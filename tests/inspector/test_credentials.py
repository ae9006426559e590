"""Whose rights decide what is read: two users and root, each with processes and files of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.declared.facts import Script, Unread
from gpuwatch.inspector import reader
from gpuwatch.inspector.credentials import Owner, acting_as
from tests import CHECKOUT
from tests.inspector.evidence import SOURCE, script_of, seen
from tests.support.process import ME, ROOT, SOMEBODY_ELSE, sharing

pytestmark = pytest.mark.slow  # real processes

needs_root = pytest.mark.skipif(not ROOT, reason="processes of two users need root")


@needs_root
def test_root_reads_everybodys(public: Path) -> None:
    (public / "train.py").write_text(SOURCE)
    with sharing("train.py", cwd=public, environ={"A": "1"}, first=f"drop({ME})") as process:
        facts = reader.read(process.pid, scan=seen)
    assert not isinstance(facts.environ, Unread)
    assert facts.environ["A"] == "1"
    assert script_of(facts) == ("train.py", SOURCE)
    assert (facts.uid, facts.ancestors) == (ME, ())


@needs_root
def test_root_is_no_oracle_for_files(public: Path) -> None:
    """A script is opened with the rights of whoever runs it: their groups open it, root's own rights do not."""
    secret = public / "secret.py"
    secret.write_text(SOURCE)
    os.chown(secret, 0, SOMEBODY_ELSE)
    secret.chmod(0o640)
    with sharing(str(secret), first=f"drop({ME})") as stranger:
        facts = reader.read(stranger.pid, scan=seen)
    assert facts.script == Script(path=str(secret), contents=Unread.DENIED)
    with sharing(str(secret), first=f"drop({ME}, [{SOMEBODY_ELSE}])") as member:
        assert script_of(reader.read(member.pid, scan=seen))[1] == SOURCE


@needs_root
def test_after_acting_as_another_all_is_as_it_was(tmp_path: Path) -> None:
    """The rights of root come back, and so does the wish to end with our parent, which the kernel forgets."""
    code = """
import ctypes, os, sys
from pathlib import Path
from gpuwatch.inspector.credentials import Owner, acting_as, die_with_parent
def wish():
    found = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(2, ctypes.byref(found), 0, 0, 0)
    return found.value
secret = Path(sys.argv[1])
secret.write_text("x"); secret.chmod(0o600)
os.setgroups([7, 8])
die_with_parent()
with acting_as(Owner(54321, 54321, (54399,))):
    try: secret.read_text(); print("read")
    except PermissionError: print("denied", os.getgroups(), wish())
print(secret.read_text(), os.getgroups(), wish())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "secret")], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "denied [54399] 9\nx [7, 8] 9\n"


def test_ones_own_rights_are_not_changed() -> None:
    with acting_as(Owner(os.getuid(), os.getgid(), ())):
        assert os.access(sys.executable, os.R_OK)


@needs_root
def test_a_link_in_a_container_does_not_lead_out_of_it(tmp_path: Path) -> None:
    inside = tmp_path / "root"
    (inside / "app").mkdir(parents=True)
    (inside / "data").mkdir()
    (inside / "data/train.py").write_text(SOURCE)
    (inside / "app/train.py").symlink_to("/data/train.py")
    (inside / "app/other.py").symlink_to("../../../data/train.py")
    for name in ("/app/train.py", "/app/other.py"):
        with sharing(name, first=f"os.chroot({str(inside)!r}); os.chdir('/app')") as process:
            assert script_of(reader.read(process.pid, scan=seen)) == (name, SOURCE)


@needs_root
def test_a_closed_file_in_a_container_opens_none_of_ours(public: Path, tmp_path: Path) -> None:
    """A path that its own root denies is not looked for in the machine's tree, with whatever root may pass."""
    inside, outside = public / "root", public / "data"
    for folder in (inside / outside.relative_to("/"), outside):
        folder.mkdir(parents=True)
    (outside / "train.py").write_text(SOURCE)
    (inside / outside.relative_to("/")).chmod(0)
    name = str(outside / "train.py")
    with sharing(name, first=f"os.chroot({str(inside)!r}); os.chdir('/'); drop({ME})") as process:
        facts = reader.read(process.pid, scan=seen)
    assert facts.script == Script(path=name, contents=Unread.DENIED)


@needs_root
def test_root_lends_nobody_its_way_into_closed_folders(public: Path) -> None:
    """/proc/PID/cwd of another user leads root, and nobody else, past the folders above it."""
    home = public / "home"
    (home / "project").mkdir(parents=True)
    (home / "project/train.py").write_text(SOURCE)
    os.chown(home, SOMEBODY_ELSE, SOMEBODY_ELSE)
    home.chmod(0o700)
    with sharing("-c", "pass", cwd=home / "project", first=f"drop({SOMEBODY_ELSE})") as victim:
        name = f"/proc/{victim.pid}/cwd/train.py"
        with sharing(name, first=f"drop({ME})") as process:
            facts = reader.read(process.pid, scan=seen)
    assert facts.script is not None
    assert isinstance(facts.script.contents, Unread)
