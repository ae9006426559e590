"""Which Python source a command line runs."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import NamedTuple

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")

_WRAPPERS = frozenset(
    {
        *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        *("accelerate", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
        *("deepspeed", "deepspeed.launcher.launch", "deepspeed.launcher.runner", "horovodrun"),
        *("ipython", "IPython", "pdb", "ipdb", "debugpy", "cProfile", "profile", "coverage", "kernprof", "viztracer"),
        *("line_profiler", "streamlit"),
    }
)
"""Scripts and modules that run another script, which stands behind their own options."""

_WORKER_CODE = ("from multiprocessing.", "import sys; from multiprocessing.")
"""How `spawn` and `forkserver` start a worker. Source: multiprocessing/spawn.py, get_command_line."""

_WORKER_MODULE = "joblib.externals.loky."

_NOTEBOOKS = frozenset({"ipykernel_launcher", "ipykernel"})


class How(Enum):
    """What kind of name a program has."""

    FILE = "file"
    MODULE = "-m"
    CODE = "-c"
    WORKER = "worker"
    """A worker of the process above it, whose source it runs."""


class Program(NamedTuple):
    """A Python program, by the path of its file, the name of its module, or its code."""

    how: How
    text: str = ""


def is_python(path: str) -> bool:
    """Say whether a path is that of a Python interpreter: `/usr/bin/python3.11`."""
    return bool(_PYTHON.fullmatch(path.rpartition("/")[2]))


@functools.lru_cache(maxsize=128)
def of(argv: tuple[str, ...]) -> Program | None:
    """Give what a Python interpreter was told to run; None for a shell of its own, a notebook, another program.

    Behind torchrun and its like the user's own script is given.
    """
    if not argv or not is_python(argv[0]):
        return None
    found, rest = started(argv[1:])
    if found is None:
        return None
    name = PurePosixPath(found.text).name.removesuffix(".py") if found.how is How.FILE else found.text
    if found.how is How.CODE:
        return Program(How.WORKER) if found.text.startswith(_WORKER_CODE) else found
    if name in _NOTEBOOKS:
        return None
    if found.how is How.MODULE and name.startswith(_WORKER_MODULE):
        return Program(How.WORKER)
    return _wrapped(rest) if name in _WRAPPERS else found


@functools.lru_cache(maxsize=128)
def outermost(argv: tuple[str, ...]) -> Program | None:
    """Give what a Python interpreter was told to run, torchrun and its like too; None as in `of`."""
    return started(argv[1:])[0] if argv and is_python(argv[0]) else None


def started(arguments: Sequence[str]) -> tuple[Program | None, Sequence[str]]:
    """Skip the interpreter's own options; give what it runs, and the arguments of that. Source: python(1).

    The arguments are those behind the interpreter's name. What is run may be a wrapper, see `of`; None for nothing.
    """
    place = 0
    while place < len(arguments):
        word, rest = arguments[place], arguments[place + 1 :]
        if word == "-":
            return None, rest
        if not word.startswith("-"):
            return Program(How.FILE, word), rest
        place += 1
        if word.startswith("--"):
            place += word == "--check-hash-based-pycs"
            continue
        for at, letter in enumerate(word):
            if letter in "cm":
                text = word[at + 1 :] or (rest[0] if rest else "")
                return Program(How.CODE if letter == "c" else How.MODULE, text), rest if word[at + 1 :] else rest[1:]
            if letter in "WX":  # the rest of the word is its value, or the next word
                place += at == len(word) - 1
                break
    return None, ()


def _wrapped(arguments: Sequence[str]) -> Program | None:
    """Give the script behind the options of a wrapper: it is the first that is called one, or follows `-m`."""
    for place, word in enumerate(arguments):
        if word in ("-m", "--module"):
            return Program(How.MODULE, "".join(arguments[place + 1 : place + 2]))
        if word.endswith(".py") and not word.startswith("-"):
            return Program(How.FILE, word)
    return None
