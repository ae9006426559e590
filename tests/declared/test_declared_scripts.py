"""What processes declared in scripts as people write them: real processes on the fake driver, told by `explain`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpuwatch.model import Confidence
from tests.support.builders import GIB
from tests.support.explaining import Explainer, card, said

pytestmark = pytest.mark.slow  # real processes


@pytest.fixture
def explain(tmp_path: Path) -> Explainer:
    return Explainer(tmp_path, [card(0), card(1)])


# ---------------------------------------------------------------------------------------------------------------------
# CuPy

TEN = {"CUPY_GPU_MEMORY_LIMIT": str(10 * GIB)}
POOL = """
import cupy as cp

mempool = cp.get_default_memory_pool()
with cp.cuda.Device(0):
    mempool.set_limit(size=20 * 1024**3)
"""
POOL_OF_A_CLASS = """
import cupy as cp

class Solver:
    def __init__(self):
        self.pool = cp.get_default_memory_pool()
        self.pool.set_limit(size=20 * 1024**3)

Solver().run()
"""
POOL_AS_ARGUMENT = """
import cupy as cp

def limit(pool, gib):
    pool.set_limit(size=gib * 1024**3)

def main():
    limit(cp.get_default_memory_pool(), 20)

if __name__ == "__main__":
    main()
"""


def test_cupys_call_takes_the_place_of_its_variable_on_its_gpu_alone(explain: Explainer) -> None:
    explain.write(train=POOL)
    declared = explain.declared(environ=TEN)
    assert explain.limits(declared) == {0: 20, 1: 10}
    first, second = (gpu.uuid for gpu in explain.gpus)
    assert said(declared, "set_limit").limits == {first: 20 * GIB}
    variable = said(declared, "CUPY_GPU_MEMORY_LIMIT")
    assert variable.limits == {second: 10 * GIB}
    assert (variable.effective, variable.why) == (True, "elsewhere set_limit comes before it")
    text = explain.text(environ=TEN, held={0: 15})
    assert "cap 10.0 GiB on GPU 1\n" in text
    assert "5.0 GiB under the 20.0 GiB that were declared" in text


@pytest.mark.parametrize("source", [POOL_OF_A_CLASS, POOL_AS_ARGUMENT])
def test_a_pool_that_is_not_followed_raises_no_overshoot_of_the_variable(explain: Explainer, source: str) -> None:
    explain.write(train=source)
    text = explain.text(environ=TEN, held={0: 15})
    assert "overshoot" not in text
    assert "set_limit" in text


def test_where_only_the_pool_of_a_class_is_limited_it_is_a_guess(explain: Explainer) -> None:
    explain.write(train=POOL_OF_A_CLASS)
    text = explain.text(held={0: 25})
    assert "guess" in text
    assert "cap 20.0 GiB" in text


# ---------------------------------------------------------------------------------------------------------------------
# Ranks of a distributed run

DDP = """
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.cuda.set_per_process_memory_fraction(0.3, local_rank)
    model = DDP(torch.nn.Linear(10, 10).to(local_rank), device_ids=[local_rank])


if __name__ == "__main__":
    main()
"""
CURRENT = """
import os
import torch

local_rank = int(os.environ.get("LOCAL_RANK", 0))


def setup():
    torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group(backend="nccl")


def main():
    setup()
    torch.cuda.set_per_process_memory_fraction(0.3)


main()
"""
DEVICE = """
import os
import torch

rank = int(os.getenv("SLURM_LOCALID", "0"))
device = torch.device(f"cuda:{rank}")
torch.cuda.set_per_process_memory_fraction(0.3, device)
"""
VISIBLE = """
import os

os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]

import torch

torch.cuda.set_per_process_memory_fraction(0.3)
"""
PARSED = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int, default=0)
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
torch.cuda.set_per_process_memory_fraction(0.3, args.local_rank)
"""
SPAWN = """
import os
import torch
import torch.multiprocessing as mp


def worker(rank, world):
    os.environ["LOCAL_RANK"] = str(rank)
    torch.cuda.set_per_process_memory_fraction(0.3, int(os.environ["LOCAL_RANK"]))


if __name__ == "__main__":
    mp.spawn(worker, args=(8,), nprocs=8)
"""
LIGHTNING = """
import lightning as L
import torch


class Net(L.LightningModule):
    def on_fit_start(self):
        torch.cuda.set_per_process_memory_fraction(0.3)


L.Trainer(devices=8).fit(Net())
"""
FRACTION = "torch.cuda.set_per_process_memory_fraction(0.3, int(os.environ.get('LOCAL_RANK', 0)))\n"
BY_SLURM = """
import os
import torch

os.environ.update({"RANK": os.environ["SLURM_PROCID"], "LOCAL_RANK": os.environ["SLURM_LOCALID"]})
"""
EIGHT = 8


@pytest.fixture
def ranks(tmp_path: Path) -> Explainer:
    return Explainer(tmp_path, [card(index) for index in range(EIGHT)])


LOGICAL = """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
{}
    tf.config.set_logical_device_configuration({}, [tf.config.LogicalDeviceConfiguration(memory_limit=24576)])
"""
ALL, THIRD = dict.fromkeys(range(EIGHT), 24), {"LOCAL_RANK": "3"}
DEFAULT = "import os, torch\nos.environ.setdefault('LOCAL_RANK', '0')\n" + FRACTION
LOOP = "import torch\nfor {} in {}:\n    torch.cuda.set_per_process_memory_fraction(0.3, {})\n"
BY_MPI = "gpus[int(os.environ['OMPI_COMM_WORLD_LOCAL_RANK'])]"


@pytest.mark.parametrize(
    ("source", "environ", "expected"),
    [
        (DDP, THIRD | {"RANK": "11", "WORLD_SIZE": "16"}, {3: 24}),
        (DDP, {"LOCAL_RANK": "7"}, {7: 24}),
        (CURRENT, THIRD, {3: 24}),
        (CURRENT, {}, {0: 24}),
        (DEVICE, {"SLURM_LOCALID": "3"}, {3: 24}),
        (VISIBLE, THIRD, {3: 24}),
        (PARSED, {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "3"}, {3: 24}),
        (DEFAULT, THIRD, {3: 24}),
        (LOOP.format("i", "range(torch.cuda.device_count())", "i"), {}, ALL),
        (LOOP.format("i", "[1, 3]", "f'cuda:0'") + LOOP.format("gpu", "range(4, 6)", "gpu"), {}, {0: 24, 4: 24, 5: 24}),
        (LOGICAL.format("for gpu in gpus:", "gpu"), {}, ALL),
        (LOGICAL.format("for i, gpu in enumerate(gpus):", "gpu"), {}, ALL),
        (LOGICAL.format("for i in range(len(gpus)):", "gpus[i]"), {}, ALL),
        (LOGICAL.format("for i in range(2):", "gpus[i]"), {}, {0: 24, 1: 24}),
        (LOGICAL.format("if True:", "gpus[int(__import__('os').environ['LOCAL_RANK'])]"), {}, {}),
        (LOGICAL.format("for i in args.gpus:", "gpus[i]"), {}, {}),
        ("import os\n" + LOGICAL.format("if gpus:", BY_MPI), {"OMPI_COMM_WORLD_LOCAL_RANK": "5"}, {5: 24}),
    ],
)
def test_the_limits_of_a_rank_are_on_its_gpus(
    ranks: Explainer, source: str, environ: dict[str, str], expected: dict[int, float]
) -> None:
    ranks.write(train=source)
    assert ranks.limits(ranks.declared(environ=environ)) == expected


@pytest.mark.parametrize(
    ("source", "environ"),
    [
        (PARSED, {"LOCAL_RANK": "3"}),
        (SPAWN, {}),
        (SPAWN, {"LOCAL_RANK": "0"}),
        (BY_SLURM + FRACTION, {"SLURM_PROCID": "3", "SLURM_LOCALID": "3"}),
        ("import os, torch\nos.environ.update(LOCAL_RANK=os.environ['SLURM_LOCALID'])\n" + FRACTION, {}),
        ("import os, torch\nos.environ.pop('LOCAL_RANK', None)\n" + FRACTION, {"LOCAL_RANK": "3"}),
        ("import os, torch\nos.environ.setdefault('LOCAL_RANK', '3')\n" + FRACTION, {}),
        (LIGHTNING, {"LOCAL_RANK": "3"}),
        (DDP, {}),
        (DDP, {"LOCAL_RANK": "three"}),
    ],
)
def test_a_gpu_that_is_known_only_at_run_time_is_not_named(
    ranks: Explainer, source: str, environ: dict[str, str]
) -> None:
    ranks.write(train=source)
    declared = ranks.declared(environ=environ)
    assert declared.limits == ()
    fraction = said(declared, "set_per_process_memory_fraction")
    assert fraction.limits == {}
    assert fraction.why == "it is for one GPU, which is known only at run time"


def test_a_limit_on_an_unknown_gpu_leaves_it_open_whether_there_is_one(ranks: Explainer) -> None:
    ranks.write(train=PARSED)
    text = ranks.text(environ={"LOCAL_RANK": "3"}, held={3: 40})
    assert "also set  cap 0.3 of the GPU\n" in text
    assert "not known to be under a limit" in text


def test_a_call_for_one_unknown_gpu_takes_the_place_of_the_environment_on_each(ranks: Explainer) -> None:
    ranks.write(train=PARSED.replace("0.3", "0.9"))
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.1"}
    assert "overshoot" not in ranks.text(environ=environ, held={3: 60})


# ---------------------------------------------------------------------------------------------------------------------
# What is called

LIMIT = "torch.cuda.set_per_process_memory_fraction(0.3, 0)"
CALLED = {
    "spawn": f"""
import torch
import torch.multiprocessing as mp

def worker(rank, world):
    {LIMIT}

if __name__ == "__main__":
    mp.spawn(worker, args=(8,), nprocs=8)
""",
    "click": f"""
import click
import torch

@click.command()
@click.option("--epochs", default=1)
def train(epochs):
    {LIMIT}

if __name__ == "__main__":
    train()
""",
    "fire": f"""
import fire
import torch

class Jobs:
    def train(self):
        self._limit()
    def _limit(self):
        {LIMIT}

fire.Fire(Jobs)
""",
    "lightning": f"""
import lightning as L
import torch

class Net(L.LightningModule):
    def configure_model(self):
        {LIMIT}

def main():
    L.Trainer().fit(Net())

main()
""",
    "table": f"""
import sys
import torch

def train():
    {LIMIT}

COMMANDS = {{"train": train}}
COMMANDS[sys.argv[1]]()
""",
    "method": f"""
import torch

class Trainer:
    def __init__(self):
        self.setup()
    def setup(self):
        {LIMIT}

if __name__ == "__main__":
    Trainer()
""",
}


@pytest.mark.parametrize("source", CALLED.values(), ids=CALLED.keys())
def test_a_function_that_may_be_called_limits(explain: Explainer, source: str) -> None:
    explain.write(train=source)
    assert explain.limits(explain.declared()) == {0: 24}


# ---------------------------------------------------------------------------------------------------------------------
# Long statements


def test_a_long_variable_keeps_the_number_that_it_is_about(explain: Explainer) -> None:
    explain.write(train="import torch\n")
    options = "garbage_collection_threshold:0.8,max_split_size_mb:512,expandable_segments:True"
    text = explain.text(environ={"PYTORCH_CUDA_ALLOC_CONF": f"{options},per_process_memory_fraction:0.4"}, held={0: 1})
    assert "PYTORCH_CUDA_ALLOC_CONF=garbage_" in text
    assert "per_process_memory_fraction:0.4 · environment" in text


# ---------------------------------------------------------------------------------------------------------------------
# Conditions

CONDITIONAL = {
    "an option": ("if a.cap:", "if `a.cap`"),
    "an exception": ("try:\n    import apex\nexcept ImportError:", "in except `ImportError`"),
    "another machine": ('if socket.gethostname() == "other":', "if `socket.gethostname() == "),
}


@pytest.mark.parametrize(("head", "condition"), CONDITIONAL.values(), ids=CONDITIONAL)
def test_a_limit_that_is_not_known_to_hold_is_shown_and_is_none(explain: Explainer, head: str, condition: str) -> None:
    explain.write(train=f"import socket, torch\na = parse()\n{head}\n    {LIMIT}\n")
    declared = explain.declared()
    assert declared.limits == ()
    text = explain.text(held={0: 79})
    assert f"possible  cap 0.3 of the GPU, 24.0 GiB on GPU 0 {condition}" in text
    assert "not known to be under a limit" in text
    assert "overshoot" not in text


def test_a_limit_that_the_environment_rules_out_is_none(explain: Explainer) -> None:
    explain.write(train=f'import os, torch\nif os.environ.get("SHARED"):\n    {LIMIT}\n')
    assert "under no limit" in explain.text(held={0: 79})
    assert explain.limits(explain.declared(environ={"SHARED": "1"})) == {0: 24}


# ---------------------------------------------------------------------------------------------------------------------
# Code that is not read


@pytest.mark.parametrize(
    ("argv", "files", "words"),
    [
        (("-",), {}, "code that is typed or piped into Python is not read"),
        (("-i",), {}, "code that is typed or piped into Python is not read"),
        (("-m", "ipykernel_launcher", "-f", "kernel-1.json"), {}, "the code of a notebook is not read"),
        ((), {"train": "import config\n", "config": "x"}, "nothing in train.py; config.py is not read"),
        ((), {"train": "import torch\nfrom a.b import c\n", "a/b": "x"}, "nothing in train.py; a/b.py is not read"),
        ((), {"train": f"import torch, a\n{LIMIT}\n", "a/__init__": "x"}, "a/__init__.py is not read"),
        (("-m", "pkg.train"), {"pkg/train": "from . import gpu\n", "pkg/gpu": "x"}, "nothing in pkg/train.py; pkg/gpu"),
        (("-c", "import helpers"), {"helpers": "x"}, "nothing in -c; helpers.py is not read"),
        ((), {"train": "import dotenv\ndotenv.load_dotenv()\n"}, "the variables that load_dotenv() sets are not read"),
    ],
)
def test_nothing_is_not_said_of_code_that_is_not_read(
    explain: Explainer, argv: tuple[str, ...], files: dict[str, str], words: str
) -> None:
    explain.write(**files)
    text = explain.text(*argv, held={1: 40})
    assert words in text
    assert "declared  nothing" not in text
    assert "not known to be under a limit" in text


@pytest.mark.parametrize(
    ("train", "files"),
    [
        ("import os, torch, numpy as np\n", {}),
        ("import torch\n# import other\n", {"other": "x"}),
        ("import json, logging\n", {"logging": "x"}),
        ("from src import torch\n", {"src/__init__": ""}),
    ],
)
def test_nothing_is_said_of_a_script_that_imports_no_code_of_its_folder(
    explain: Explainer, train: str, files: dict[str, str]
) -> None:
    explain.write(train=train, **files)
    text = explain.text(held={0: 40})
    assert "under no limit" in text
    assert "declared  nothing" in text


# ---------------------------------------------------------------------------------------------------------------------
# MPS


def test_a_limit_of_mps_is_in_effect_only_where_its_daemon_listens(explain: Explainer, tmp_path: Path) -> None:
    explain.write(train="import torch\n")
    control = tmp_path / "mps" / "control"
    control.parent.mkdir()
    environ = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G", "CUDA_MPS_PIPE_DIRECTORY": str(control.parent)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(control))
        daemon.listen()
        served = explain.declared(environ=environ)
    assert control.exists()
    assert explain.limits(served) == {0: 1}
    assert said(served, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").confidence is Confidence.CERTAIN
    text = explain.text(environ=environ, held={0: 30})
    assert "1.0 GiB on GPU 0 if an MPS daemon serves it" in text
    assert "overshoot" not in text
