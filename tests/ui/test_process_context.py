"""What a process runs in, in the process list and on its detail screen."""

from __future__ import annotations

import pytest

from gpuwatch.model import Container, Notebook, Pane, Presence, Process, Run, Surroundings
from gpuwatch.ui.screens.detail import place_section
from tests.support.builders import process

TMUX = Pane(program="tmux", session="$1", window="%3", alive=True)
ENDED = Pane(program="screen", session="train", window="2", alive=False)
VLLM = Container(runtime="docker", id="3f9a1c0b77d2", name="vllm")
KERNEL = Notebook(kernel="ab12cd34", path="x/explore.ipynb", server=77)
RANK = Run(key="9:9", name="train.py", launcher="torchrun", head=9, rank=3, world=8)
WORKER = Run(key="9:9", name="train.py", worker_of=8, orphaned=True)


def around(**places: object) -> Process:
    return process(10, surroundings=Surroundings(**places))  # type: ignore[arg-type]


def told(one: Process) -> dict[str, str]:
    return {fact.label: fact.value for fact in place_section(one).facts}


@pytest.mark.parametrize(
    ("places", "where", "label", "words"),
    [
        ({"pod": "serving/triton-7d9f"}, "pod triton-7d9f", "pod", "serving/triton-7d9f"),
        ({"container": VLLM}, "docker vllm", "container", "docker vllm (3f9a1c0b77d2)"),
        ({"container": Container(runtime="podman", id="3f9a")}, "podman 3f9a", "container", "podman 3f9a"),
        ({"slurm": "4711.0"}, "slurm 4711.0", "Slurm job", "4711.0"),
        ({"unit": "ollama.service"}, "ollama", "systemd unit", "ollama.service"),
        ({"notebook": KERNEL}, "notebook explore.ipynb", "notebook", "x/explore.ipynb · kernel ab12cd34 · server 77"),
        ({"notebook": Notebook(left=True)}, "notebook", "notebook", "its server has ended"),
        ({"pane": TMUX}, "tmux $1 %3", "terminal", "tmux session $1, pane %3"),
        ({"pane": ENDED}, "screen train 2", "terminal", "screen session train, window 2, which has ended"),
        ({"ssh": "10.0.0.5"}, "ssh 10.0.0.5", "SSH login", "from 10.0.0.5"),
        ({"login": "ada", "login_uid": 1001}, "", "logged in as", "ada (uid 1001)"),
        ({"server": "listens on port 8000"}, "", "server", "listens on port 8000"),
        ({"peer": "10.0.0.5:29500"}, "", "connected to", "10.0.0.5:29500"),
        ({"run": RANK}, "", "run", "train.py · torchrun · rank 3 of 8 · began with 9"),
        ({"run": WORKER}, "", "run", "train.py · worker of 8 · its run has ended"),
        ({"words": "its environment is not ours to read"}, "", "not read", "its environment is not ours to read"),
    ],
)
def test_each_place_has_a_word_in_the_list_and_a_line_in_the_detail(
    places: dict[str, object], where: str, label: str, words: str
) -> None:
    one = around(**places)
    assert one.surroundings is not None
    assert one.surroundings.where == where
    assert told(one)[label] == words


def test_nothing_known_is_said_so() -> None:
    assert told(process(10)) == {"not known": "not read yet"}
    assert told(process(10, presence=Presence.HIDDEN)) == {"not known": "not visible"}
    assert told(around()) == {"place": "no container, job, terminal or login found"}


def test_what_is_gone_of_its_session_is_said() -> None:
    one = process(10, surroundings=Surroundings(), session=900, led=False, adopted=True, parent="systemd")
    assert told(one) == {
        "login": "the leader of its session (900) has ended",
        "parent": "has ended; taken in by systemd",
    }
