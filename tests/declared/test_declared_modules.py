"""What modules declare that lie beside a script and are imported by it: real processes on the fake driver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector import reader
from gpuwatch.model import Confidence, Declared, Knowledge
from tests.support.explaining import Explainer, card, said
from tests.support.gpuholder import ME, ROOT
from tests.support.resolving import E
from tests.support.sharer import sharing

pytestmark = pytest.mark.slow  # real processes

LIMIT = "torch.cuda.set_per_process_memory_fraction(0.3, 0)"
AT_IMPORT = f"import torch\n{LIMIT}\n"
FUNCTION = f"import torch\n\ndef limit_memory():\n    {LIMIT}\n"
PLAIN = "import torch\n\ndef net():\n    return torch.nn.Linear(10, 10)\n"
CALLS = "import torch\nfrom helpers import limit_memory\nlimit_memory()\n"
NOT_KNOWN = "not known to be under a limit"


@pytest.fixture
def explain(tmp_path: Path) -> Explainer:
    return Explainer(tmp_path, [card(0), card(1)])


def incomplete(explain: Explainer, *argv: str) -> Declared:
    """Return what is known where it is said that more may have been declared."""
    declared = explain.declared(*argv)
    assert declared.incomplete
    assert declared.knowledge is Knowledge.READ
    text = explain.text(*argv, held={1: 40})
    assert NOT_KNOWN in text
    assert declared.words in text
    assert "it may have declared more than is shown" in text
    return declared


@pytest.mark.parametrize(
    ("train", "files"),
    [
        ("import config\n", {"config": AT_IMPORT}),
        ("import torch\nimport numpy as np, config as c\n", {"config": AT_IMPORT}),
        (CALLS, {"helpers": FUNCTION}),
        ("from helpers import limit_memory as limit\nlimit()\n", {"helpers": FUNCTION}),
        ("import helpers\nhelpers.limit_memory()\n", {"helpers": FUNCTION}),
        ("from src.gpu import limit_memory\nlimit_memory()\n", {"src/gpu": FUNCTION}),
        ("from src import (\n    gpu,\n)\ngpu.limit_memory()\n", {"src/__init__": "", "src/gpu": FUNCTION}),
        ("import src.gpu\n", {"src/__init__": AT_IMPORT, "src/gpu": PLAIN}),
        ("def main():\n    from helpers import limit_memory\n    limit_memory()\nmain()\n", {"helpers": FUNCTION}),
        (
            "from a import begin\nimport b\nbegin()\n",
            {"a": "from b import limit_memory\ndef begin():\n    limit_memory()\n", "b": FUNCTION},
        ),
    ],
)
def test_what_an_imported_module_declares_counts(explain: Explainer, train: str, files: dict[str, str]) -> None:
    explain.write(train=train, **files)
    declared = explain.declared()
    assert explain.limits(declared) == {0: 24}
    fraction = said(declared, "set_per_process_memory_fraction")
    assert fraction.where == next(f"{name}.py" for name in files if LIMIT in files[name])
    assert fraction.confidence is Confidence.LIKELY
    assert not declared.incomplete


@pytest.mark.parametrize(
    ("train", "helpers"),
    [
        ("import torch\nfrom helpers import limit_memory\n", FUNCTION),
        ("import helpers\ndef never():\n    helpers.limit_memory()\n", FUNCTION),
        ("import helpers\n", f"{FUNCTION}\nif __name__ == '__main__':\n    limit_memory()\n"),
    ],
)
def test_what_no_file_of_the_program_calls_limits_nothing(explain: Explainer, train: str, helpers: str) -> None:
    explain.write(train=train, helpers=helpers)
    declared = explain.declared()
    assert declared.limits == ()
    assert not said(declared, "set_per_process_memory_fraction").effective


def test_modules_that_declare_nothing_leave_no_doubt(explain: Explainer) -> None:
    explain.write(train="import os, torch\nfrom net import net\nimport data\n", net=PLAIN, data="import csv\n")
    assert "under no limit" in explain.text(held={0: 40})


def test_a_file_that_is_not_imported_is_not_read(explain: Explainer) -> None:
    explain.write(train="import torch\n# import other\n", other=AT_IMPORT)
    assert "under no limit" in explain.text(held={0: 40})


def test_a_variable_that_a_module_sets_is_likely(explain: Explainer) -> None:
    explain.write(train="import config\nimport torch\n", config="import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\n")
    declared = explain.declared()
    assert declared.visible is not None
    assert declared.visible.gpus == (explain.gpus[1].uuid,)
    assert declared.visible.where == "config.py:2"
    assert declared.visible.note == "it may not be in effect"


def test_a_gpu_that_a_module_may_set_is_not_taken_for_the_first(explain: Explainer) -> None:
    explain.write(
        train="import torch\nfrom dist import setup\nsetup()\ntorch.cuda.set_per_process_memory_fraction(0.3)\n",
        dist="import os, torch\ndef setup():\n    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n",
    )
    declared = explain.declared(environ={"LOCAL_RANK": "0"})
    assert declared.limits == ()
    assert said(declared, "set_per_process_memory_fraction").undecided


def test_a_module_of_the_folder_of_a_package(explain: Explainer) -> None:
    explain.write(**{"pkg/train": "from . import gpu\nfrom .sub.deep import x\n", "pkg/gpu": AT_IMPORT})
    declared = explain.declared("-m", "pkg.train")
    assert said(declared, "set_per_process_memory_fraction").where == "pkg/gpu.py"


def test_a_module_that_code_on_the_command_line_imports(explain: Explainer) -> None:
    explain.write(helpers=AT_IMPORT)
    assert explain.limits(explain.declared("-c", "import helpers")) == {0: 24}


def test_a_script_elsewhere_has_its_modules_in_its_own_folder(explain: Explainer) -> None:
    explain.write(**{"job/train": "import helpers\n", "job/helpers": AT_IMPORT, "helpers": "import torch\n"})
    path = str(explain.folder / "job/train.py")
    declared = explain.declared(path)
    assert said(declared, "set_per_process_memory_fraction").where == str(explain.folder / "job/helpers.py")


def test_a_module_that_was_edited_after_the_start_is_doubted(explain: Explainer) -> None:
    explain.write(train="import helpers\n", helpers=AT_IMPORT)
    later = (explain.folder / "helpers.py").stat().st_mtime + 3600
    os.utime(explain.folder / "helpers.py", (later, later))
    declared = explain.declared()
    assert said(declared, "set_per_process_memory_fraction").confidence is Confidence.STALE


# ---------------------------------------------------------------------------------------------------------------------
# What is not read


def test_a_module_of_a_module_is_said_to_be_left_out(explain: Explainer) -> None:
    explain.write(train="import helpers\n", helpers="import torch\nimport deep\n", deep=AT_IMPORT)
    declared = incomplete(explain)
    assert declared.words == "deep.py was not read: only modules that the script itself imports are"
    assert declared.limits == ()


def test_what_several_files_import_is_read_once(explain: Explainer) -> None:
    explain.write(train="import a\nimport b\n", a="import b\nimport train\n", b="import a\n" + AT_IMPORT)
    declared = explain.declared()
    assert not declared.incomplete
    assert explain.limits(declared) == {0: 24}


def test_a_module_that_cannot_be_understood_is_said_to_be_so(explain: Explainer) -> None:
    explain.write(train="import helpers\n", helpers=f"print 'two'\n{LIMIT}\n")
    assert incomplete(explain).words.startswith("helpers.py could not be understood: line 1")


@pytest.mark.parametrize("kind", ["fifo", "large", "device"])
def test_a_module_that_is_no_ordinary_file_is_not_opened(explain: Explainer, kind: str) -> None:
    explain.write(train="import helpers\n")
    path = explain.folder / "helpers.py"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        path.write_bytes(b"#" * (1 << 20))
    else:
        path.symlink_to("/dev/zero")
    assert incomplete(explain).words == "helpers.py could not be read"


@pytest.mark.skipif(not ROOT, reason="only root may become somebody else")
def test_a_module_that_its_owner_may_not_read_is_closed(public: Path) -> None:
    (public / "train.py").write_text("import helpers\n")
    (public / "helpers.py").write_text(AT_IMPORT)
    (public / "helpers.py").chmod(0o600)
    with sharing("train.py", cwd=public, first=f"drop({ME})") as process:
        declared = resolve(reader.read(process.pid), E)
    assert declared.incomplete
    assert declared.words == "helpers.py is not ours to read"
    assert declared.limits == ()


def test_so_many_modules_are_read_and_the_others_named(explain: Explainer) -> None:
    names = [f"part{number}" for number in range(40)]
    explain.write(train="".join(f"import {name}\n" for name in names), **dict.fromkeys(names, AT_IMPORT))
    declared = incomplete(explain)
    assert declared.words.startswith("part16.py, part17.py, part18.py and 21 more were not read")
    assert len(declared.declarations) == 16


def test_large_modules_are_read_as_long_as_there_is_room(explain: Explainer) -> None:
    padding = "#" * (400 << 10) + "\n"
    names = ["one", "two", "three"]
    explain.write(train="".join(f"import {name}\n" for name in names), **dict.fromkeys(names, padding + AT_IMPORT))
    declared = incomplete(explain)
    assert "three.py" in declared.words
    assert {one.where for one in declared.declarations} == {"one.py", "two.py"}
