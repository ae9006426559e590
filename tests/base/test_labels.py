"""What runs, as the column of commands has it: script or module first, then its arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.base.programs import label, split_command, unwrap
from gpuwatch.base.text import format_command_line

KERNEL = "/run/user/1/jupyter/kernel-3f9a1c22-7777-4444-8888-abcdefabcdef.json"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("/home/ada/venv/bin/python3 -u /home/ada/proj/train.py --lr 1", "train.py --lr 1"),
        ("python -W ignore train.py '--name=a b'", "train.py '--name=a b'"),
        ("python ComfyUI/main.py --listen", "ComfyUI/main.py --listen"),
        ("python main.py", "main.py"),
        ("python3.11 -m pkg.train --lr 1", "-m pkg.train --lr 1"),
        ("/usr/bin/python3 -c 'import torch; a()'", "python3 -c 'import torch; a()'"),
        ("/usr/bin/python3", "python3"),
        ("/opt/venv/bin/python /opt/venv/bin/vllm serve meta/llama --port 8000", "vllm serve meta/llama --port 8000"),
        ("/opt/gromacs/bin/gmx mdrun -s /data/a.tpr", "gmx mdrun -s /data/a.tpr"),
        ("./sim --steps 4", "sim --steps 4"),
        # launchers; those of their options that nobody knows hide no script
        ("torchrun --nproc-per-node 4 train.py --lr 1", "train.py --lr 1"),
        ("python /opt/bin/torchrun --standalone --new-flag x train.py --lr 1", "train.py --lr 1"),
        ("torchrun --nproc-per-node=4 -m pkg.train --lr 1", "-m pkg.train --lr 1"),
        ("python -m torch.distributed.run --nnodes 2 a/train.py", "train.py"),
        ("python3 -m torch.distributed.launch --nproc_per_node=2 train.py -m x", "train.py -m x"),
        ("torchrun --help", "torchrun --help"),
        ("accelerate launch --multi_gpu train.py --m x.py", "train.py --m x.py"),
        ("accelerate launch --config_file c.py -m axolotl.cli.train a.yml", "-m axolotl.cli.train a.yml"),
        ("accelerate config", "accelerate config"),
        ("deepspeed --num_gpus 4 --module pkg.train --deepspeed ds.json", "-m pkg.train --deepspeed ds.json"),
        ("python -u -m deepspeed.launcher.launch --world_info=e30= train.py --local_rank=0", "train.py --local_rank=0"),
        ("horovodrun -np 4 python train.py", "train.py"),
        ("mpirun -np 4 --hostfile hosts.py -x PATH ./sim --script a.py", "sim --script a.py"),
        ("mpirun -n 4 gmx mdrun", "gmx mdrun"),
        ("mpirun -np 2 --bind-to none python train.py", "train.py"),
        ("srun -J train.py --gres=gpu:1 -m block python -u eval.py --n 3", "eval.py --n 3"),
        ("srun --pty --time 10:00 bash", "bash"),
        ("srun --time 10:00 --env x ./sim", "sim"),
        ("orted -mca ess env -mca x 1", "orted -mca ess env -mca x 1"),
        # wrappers
        ("uv run --with torch train.py --lr 1", "train.py --lr 1"),
        ("uv --directory /a run -m pkg.train", "-m pkg.train"),
        ("uv pip install torch", "uv pip install torch"),
        ("conda run -n python --no-capture-output python train.py", "train.py"),
        ("conda run -n x tool --lr 1", "tool --lr 1"),
        ("poetry run python -m pkg.train", "-m pkg.train"),
        ("env -u X A=1 B=2 python train.py", "train.py"),
        ("nice -n 10 nohup stdbuf -oL timeout -k 5 9h python train.py --lr 1", "train.py --lr 1"),
        ("numactl -N 0 -m 0 taskset -c 0-3 ./sim", "sim"),
        ("sudo -u ada torchrun train.py", "train.py"),
        ("timeout -s KILL 9h taskset 0xff gmx mdrun", "gmx mdrun"),
        ("apptainer exec --nv /img/a.sif python train.py", "train.py"),
        ("nsys profile -o out -t cuda python train.py", "train.py"),
        ("python -m cProfile -o out.prof train.py", "train.py"),
        ("python /x/debugpy/launcher 4711 -- train.py --lr 1", "train.py --lr 1"),
        ("make train", "make train"),
        ("nohup", "nohup"),
        # shells
        ("bash -e /home/ada/sweep.sh 1", "sweep.sh 1"),
        ("bash -lc 'cd /x && source v/bin/activate && A=1 exec python train.py --lr 1 > log 2>&1'", "train.py --lr 1"),
        ("sh -c 'python train.py --lr 1 2>&1 | tee log'", "train.py --lr 1"),
        ("bash -c 'python a.py && python b.py'", "bash -c 'python a.py && python b.py'"),
        ("sh -c 'for i in 1 2; do python a.py; done'", "sh -c 'for i in 1 2; do python a.py; done'"),
        ("-bash", "-bash"),
        # notebooks and titles
        (f"python -m ipykernel_launcher -f {KERNEL}", "notebook 3f9a1c22"),
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        ("ray::Trainer.train()", "ray::Trainer.train()"),
        ("gunicorn: master [app:main]", "gunicorn: master [app:main]"),
        ("it's epoch  3", "it's epoch  3"),
        ("", ""),
    ],
)
def test_what_runs(line: str, shown: str) -> None:
    assert label(line) == shown


WORDS = ["env", "bash", "-c", "torchrun", "python", "-m", "--", "A=1", "a.py", "-n", "uv", "run", "it's", 'a "b']


@given(st.lists(st.sampled_from(WORDS), min_size=2, max_size=9))
def test_what_runs_is_the_end_of_the_line(argv: list[str]) -> None:
    """And a line that was written has its words again."""
    words = unwrap(tuple(argv))
    assert words[1:] == tuple(argv[len(argv) - len(words) + 1 :]) or not words
    assert split_command(format_command_line(argv)) == tuple(argv)
