"""The scripts that people share GPUs with, run as real processes of a real user, and read by everybody there is.

Root and the user must find what the script declares; another user may see the command line and nothing else, and must
say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector import reader
from gpuwatch.model.snapshot import Declared, Knowledge
from tests.support.declared import A, limits, visible
from tests.support.process import ME, ROOT, SOMEBODY_ELSE, sharing
from tests.support.program import answers

pytestmark = pytest.mark.slow  # real processes

READER = """
import os, sys
import msgspec
from gpuwatch.declared import script
from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector import reader
from tests.support.declared import A
uid, pid = map(int, sys.argv[1:])
if uid != os.geteuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
os.write(1, msgspec.json.encode(resolve(reader.read(pid, user="somebody"), A)))
"""
"""All that is imported is imported before the rights are let go of: another user need not be able to read our tests."""

RC = "[global]\ndevice = gpu0\nfloatX = float32\n\n[lib]\ncnmem = 0.3\n"


@dataclass(frozen=True)
class Example:
    """Where a script is run, and what it comes to on four GPUs of 11019 MiB."""

    environ: dict[str, str] = field(default_factory=dict)
    rc: str = ""
    visible: tuple[int, ...] = (0, 1, 2, 3)
    limits: dict[int, float] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


EXAMPLES = {
    "Theano": Example(rc=RC, labels=("start size",)),
    "TensorFlow 1": Example({"CUDA_VISIBLE_DEVICES": "2"}, visible=(2,), limits={2: 4407.6}, labels=("growth",)),
    "TensorFlow 1, misspelt": Example(hints=("misspelt", "no effect")),
    "Keras": Example({"CUDA_VISIBLE_DEVICES": "0"}, visible=(1,), limits={1: 3305.7}),
    "TensorFlow 2, growth": Example(labels=("growth",)),
    "TensorFlow 2, limit": Example({"CUDA_VISIBLE_DEVICES": "3,2"}, visible=(3, 2), limits={3: 1024}),
    "TensorFlow 2, two devices": Example(visible=(0,), limits={0: 1024}),
    "PyTorch, two cards": Example(visible=(2, 3)),
    "PyTorch, four cards": Example(limits=dict.fromkeys(range(4), 2754.75)),
    "PyTorch, a fraction": Example({"CUDA_VISIBLE_DEVICES": "2"}, visible=(2,), limits={2: 5509.5}),
}


SOURCES = dict(part.split("\n", 1) for part in (Path(__file__).parent / "founding.txt").read_text().split("\n=== ")[1:])


def read_as(uid: int, pid: int) -> Declared:
    """Read a process with the rights of a user, and resolve it."""
    (declared,) = answers(READER, uid, pid)
    return msgspec.convert(declared, Declared)


def check(example: Example, declared: Declared) -> None:
    assert declared.knowledge is Knowledge.READ, declared.words
    assert visible(declared, A) == list(example.visible)
    assert limits(declared, A) == pytest.approx(example.limits, abs=0.01)
    assert {hint.rule for hint in declared.hints} == set(example.hints)
    said = {str(each.kind) for each in declared.declarations if each.effective and not each.limits}
    assert set(example.labels) <= said


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_that_people_share_gpus_with(name: str, public: Path) -> None:
    example = EXAMPLES[name]
    (public / "train.py").write_text(SOURCES[name])
    if example.rc:
        (public / ".theanorc").write_text(example.rc)
    environ = {"HOME": str(public), "LANG": "C.UTF-8", **example.environ}
    with sharing("train.py", "--epochs", "20", environ=environ, cwd=public, first=f"drop({ME})" if ROOT else "") as one:
        check(example, resolve(reader.read(one.pid, user="somebody"), A))


@pytest.mark.skipif(not ROOT, reason="a process of another user needs root")
def test_its_user_can_read_it_and_another_user_says_that_he_cannot(public: Path) -> None:
    example = EXAMPLES["Keras"]
    (public / "train.py").write_text(SOURCES["Keras"])
    with sharing("train.py", environ=example.environ, cwd=public, first=f"drop({ME})") as one:
        check(example, read_as(ME, one.pid))
        declared = read_as(SOMEBODY_ELSE, one.pid)
    assert declared.knowledge is Knowledge.UNREADABLE
    assert declared.visible is None
    assert declared.limits == ()
    assert "no permission to read" in declared.words
