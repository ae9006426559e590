"""Words about the host, and the names of processes, in the dashboard and in `--once`."""

from __future__ import annotations

import pytest

from gpuwatch.model.fields import brief_command, host_words, process_words
from gpuwatch.model.snapshot import Gpu, Health, HostUsage, Presence, ProcessContext, Reason, Run
from tests.support.builders import GIB, gpu, process

MEASURED = HostUsage(
    cores=64, cpu=36.6, memory_total=512 * GIB, memory_used=212 * GIB, swap_total=8 * GIB, swap_used=0, load=12.14
)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (HostUsage(), ""),  # an older recording
        (MEASURED, "CPU 37 % · RAM 212/512 GiB · swap 0 · load 12.1"),
        (
            HostUsage(cpu=Reason.ERROR, memory_used=GIB, memory_total=7 * GIB, swap_total=0, swap_used=0, load=0.04),
            "CPU ? · RAM 1.0/7.0 GiB · no swap · load 0.0",
        ),
        (
            HostUsage(memory_used=Reason.ERROR, swap_used=3 * GIB, load=Reason.ERROR),
            "RAM ?/? GiB · swap 3.0 GiB · load ?",
        ),
        (
            HostUsage(cpu=4, cpu_limit=2.5, memory_limit=16 * GIB, memory_of_limit=3 * GIB),
            "CPU 4 % · container 2.5 CPUs, 3.0/16 GiB",
        ),
        (HostUsage(cpu_limit=1.0), "container 1 CPU"),
    ],
)
def test_words_about_the_host(usage: HostUsage, expected: str) -> None:
    assert " · ".join(host_words(usage, "?")) == expected


@pytest.mark.parametrize(
    ("notes", "count", "words"),
    [
        (["", ""], 0, "0 processes"),
        (["", ""], 1, "1 process"),
        (["no list", "no list"], 0, "processes not listed"),
        (["no list", ""], 0, "0 processes listed"),
        (["no list", "no list"], 3, "3 processes listed"),
        ([], 0, "0 processes"),
    ],
)
def test_a_count_of_processes_says_where_there_may_be_others(notes: list[str], count: int, words: str) -> None:
    gpus = [gpu(index, holdings_note=note) for index, note in enumerate(notes)]
    assert process_words(gpus, count) == words
    lost = Gpu(index=9, health=Health.LOST)
    assert process_words([*gpus, lost], count) == words


WORKER = "python -c 'from multiprocessing.spawn import spawn_main'"
VLLM = Run(key="1:1", name="vllm serve meta/llama", head=1, worker_of=1)
SCRIPTED = Run(key="1:1", name="all.py", starter="vllm serve m", worker_of=1)
TRAINING = Run(key="1:1", name="train.py", launcher="torchrun", head=1)


@pytest.mark.parametrize(
    ("command", "run", "shown", "below"),
    [
        ("VLLM::Worker_TP0", VLLM, "vllm serve meta/llama (VLLM::Worker_TP0)", "VLLM::Worker_TP0"),
        ("python train.py --lr 1", TRAINING, "train.py --lr 1", "train.py --lr 1"),
        ("VLLM::EngineCore", SCRIPTED, "vllm serve m (VLLM::EngineCore)", "vllm serve m (VLLM::EngineCore)"),
        ("step 7 of 9", TRAINING, "train.py (step 7 of 9)", "step 7 of 9"),
        ("step 7 of 9", Run(key="1:1", name="step 7 of 9", head=1), "step 7 of 9", "step 7 of 9"),
        ("python eval.py", Run(key="1:1", name="sweep.py", head=1), "eval.py", "eval.py"),
        ("ray::Trainer.train()", Run(key="1:1", name="ray::Trainer"), "ray::Trainer.train()", "ray::Trainer.train()"),
        (WORKER, TRAINING, "train.py (worker)", "train.py"),
        ("python -m ipykernel_launcher -f k", Run(key="1:1", name="a.ipynb"), "a.ipynb", "a.ipynb"),
        ("VLLM::EngineCore", None, "VLLM::EngineCore", "VLLM::EngineCore"),
        ("", VLLM, "[python]", "[python]"),
    ],
)
def test_a_process_is_named_by_its_run_where_its_own_line_does_not_say_what_runs(
    command: str, run: Run | None, shown: str, below: str
) -> None:
    one = process(11, "ada", command=command, name="python", context=run and ProcessContext(run=run))
    assert (brief_command(one), brief_command(one, below=True)) == (shown, below)


def test_an_ended_process_is_named_by_what_it_ran() -> None:
    one = process(11, "ada", command="/usr/bin/python train.py", presence=Presence.GONE)
    assert brief_command(one) == "(ended: it still holds memory) train.py"
