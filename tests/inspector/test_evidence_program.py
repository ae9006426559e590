"""Which Python source a command line runs."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.inspector.program import How, Program, find_program, is_python


@pytest.mark.parametrize(
    ("line", "how", "text"),
    [
        ("python train.py", How.FILE, "train.py"),
        ("/opt/conda/bin/python3.11 -u train.py --lr 0.1 other.py", How.FILE, "train.py"),
        ("python -u -O -B train.py", How.FILE, "train.py"),
        ("python -X dev -W ignore train.py", How.FILE, "train.py"),
        ("python -Xdev -Wignore train.py", How.FILE, "train.py"),
        ("python -uW ignore train.py", How.FILE, "train.py"),
        ("python --check-hash-based-pycs always train.py", How.FILE, "train.py"),
        ("python -m pkg.train --m other", How.MODULE, "pkg.train"),
        ("python -mpkg", How.MODULE, "pkg"),
        ("python -um pkg", How.MODULE, "pkg"),
        ("python -c 'import torch' -m no", How.CODE, "import torch"),
        ("python -uc 'import torch'", How.CODE, "import torch"),
        ("python '-cimport torch'", How.CODE, "import torch"),
        ("pypy3 train.py", How.FILE, "train.py"),
        ("python3.13t train.py", How.FILE, "train.py"),
        ("python /venv/bin/vllm serve m", How.FILE, "/venv/bin/vllm"),
        # wrappers: the user's script is behind their options
        ("python /venv/bin/torchrun --nproc_per_node 4 train.py --x", How.FILE, "train.py"),
        ("python /venv/bin/torchrun --nproc-per-node=4 -m pkg.train", How.MODULE, "pkg.train"),
        ("python -m torch.distributed.run --standalone train.py", How.FILE, "train.py"),
        ("python -m torch.distributed.launch --module pkg.train", How.MODULE, "pkg.train"),
        ("python /venv/bin/accelerate launch --config_file a.yaml train.py", How.FILE, "train.py"),
        ("python -u /venv/bin/deepspeed --num_gpus 2 src/train.py --deepspeed ds.json", How.FILE, "src/train.py"),
        ("python -m cProfile -o out train.py", How.FILE, "train.py"),
        ("python -m pdb train.py", How.FILE, "train.py"),
        ("python /venv/bin/ipython train.py", How.FILE, "train.py"),
        # workers
        (
            "python -c 'from multiprocessing.spawn import spawn_main; spawn_main()' --multiprocessing-fork",
            How.WORKER,
            "",
        ),
        ("python -s -c 'from multiprocessing.forkserver import main; main()'", How.WORKER, ""),
        ("python -m joblib.externals.loky.backend.popen_loky_posix --pipe 9", How.WORKER, ""),
    ],
)
def test_the_program_is_found_behind_the_options(line: str, how: How, text: str) -> None:
    """As python(1) reads them."""
    assert find_program(tuple(shlex.split(line))) == Program(how, text)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "python",
        "python -",
        "python -i",
        "python -X",
        "sleep 600",
        "./train.py",
        "VLLM::EngineCore",
        "pythonic train.py",
        "tensorflow_model_server --port=8500",
        "python -m ipykernel_launcher -f kernel.json",
        "python -m ipykernel -f kernel.json",
        "python /venv/lib/python3.11/site-packages/ipykernel_launcher.py -f kernel.json",
        "python /venv/bin/torchrun --help",
        "python /venv/bin/ipython",
    ],
)
def test_other_programs_and_shells_have_none(line: str) -> None:
    """A notebook's cells are in no file that a command line names."""
    assert find_program(tuple(shlex.split(line))) is None


@given(st.lists(st.text(max_size=12), max_size=8))
def test_no_command_line_makes_it_raise(words: list[str]) -> None:
    """People may call their arguments anything."""
    for argv in (tuple(words), ("python", *words), ("python", "-m", "pdb", *words)):
        found = find_program(argv)
        assert found is None or found.how is How.WORKER or found.text in " ".join(argv)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/usr/bin/python3", True), ("python", True), ("/opt/python/bin/sh", False), ("", False), ("ipython", False)],
)
def test_what_is_an_interpreter(path: str, expected: bool) -> None:
    """By the name of its file alone."""
    assert is_python(path) is expected
