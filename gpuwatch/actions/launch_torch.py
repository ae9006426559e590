"""Whether the PyTorch that a command would import takes its share from the environment, found out without running it.

PyTorch reads the key `per_process_memory_fraction` of PYTORCH_CUDA_ALLOC_CONF from 2.10.0 on; 2.9.1 and older end with
"Unrecognized CachingAllocator option" at the first use of CUDA. Which it is stands in a header that every wheel has.
Source: c10/cuda/CUDAAllocatorConfig.h of both; https://github.com/pytorch/pytorch/pull/161035.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuwatch import files

KEY = "per_process_memory_fraction"

_HEADER = Path("include/c10/cuda/CUDAAllocatorConfig.h")

_PYTHON = re.compile(r"python[0-9.]*t?")

_LONGEST_HEADER = 1 << 20
_LONGEST_SHEBANG = 256
"""Bytes: BINPRM_BUF_SIZE of Linux."""
_LONGEST_SETTINGS = 1 << 16


def why_not(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Say why a command's PyTorch is not to be given the key; empty where every one it could import knows it.

    The command must be a Python interpreter, or a script that names one in its first line (torchrun); what a shell
    script starts cannot be told.
    """
    python = interpreter(command[0], environ)
    if python is None:
        return f"{Path(command[0]).name} does not say which Python it runs"
    found = [folder for folder in _packages(python, environ) if (folder / "torch").is_dir()]
    if not found:
        return f"{python} has no PyTorch"
    for folder in found:
        try:
            with open(files.open_ordinary(folder / "torch" / _HEADER), "rb") as header:
                knows = KEY.encode() in header.read(_LONGEST_HEADER)
        except OSError:
            return f"{folder}/torch does not show whether it takes {KEY}"
        if not knows:
            return f"{folder}/torch is older than 2.10, where {KEY} is an error"
    return ""


def interpreter(program: str, environ: Mapping[str, str]) -> Path | None:
    """Give the Python interpreter behind a program, unresolved (that of a venv is a link); None where there is none."""
    for _ in range(2):  # a script, then what its first line names
        place = shutil.which(program, path=environ.get("PATH", os.defpath))
        if place is None:
            return None
        if _PYTHON.fullmatch(Path(place).name):
            return Path(place).absolute()
        program = _shebang(Path(place))
        if not program:
            return None
    return None


def _shebang(script: Path) -> str:
    """Give the program that a script's first line names, through `env` too; empty for none."""
    try:
        with open(files.open_ordinary(script), "rb") as file:
            line = file.read(_LONGEST_SHEBANG).partition(b"\n")[0]
    except OSError:
        return ""
    if not line.startswith(b"#!"):
        return ""
    words = os.fsdecode(line[2:]).split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else ""


def _packages(python: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Give every folder from which an interpreter may import: PYTHONPATH, the user's own, its own, its system's."""
    for entry in environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry:
            yield Path(entry)
    prefixes = [python.parent.parent, _home(python)]
    if home := environ.get("HOME"):
        prefixes.insert(0, Path(home, ".local"))
    for prefix in dict.fromkeys(prefix for prefix in prefixes if prefix):
        for library in ("lib", "lib64", "local/lib"):
            for version in sorted((prefix / library).glob("python3*")):
                for packages in ("site-packages", "dist-packages"):
                    yield version / packages


def _home(python: Path) -> Path | None:
    """Give the prefix of the interpreter behind a venv that also sees that one's packages."""
    try:
        with open(files.open_ordinary(python.parent.parent / "pyvenv.cfg"), "rb") as file:
            settings = file.read(_LONGEST_SETTINGS).decode("utf-8", "replace")
    except OSError:
        return None
    if not re.search(r"^include-system-site-packages\s*=\s*true", settings, re.MULTILINE | re.IGNORECASE):
        return None
    home = re.search(r"^home\s*=\s*(\S.*)$", settings, re.MULTILINE)
    return Path(home[1].strip()).parent if home else None
