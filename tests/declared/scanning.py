"""Sources to scan in tests, and what is found in them."""

from __future__ import annotations

import textwrap

from gpuwatch.declared.facts import Candidate, ScriptContents, Setting
from gpuwatch.declared.script import read_script
from gpuwatch.model.snapshot import Confidence

LIKELY, GUESS = Confidence.LIKELY, Confidence.GUESS
TF = "import tensorflow as tf\ngpus = tf.config.list_physical_devices('GPU')\n"
TORCH = "import torch\n"
CUPY = "import cupy as cp\n"
LIMIT = "c.gpu_options.per_process_gpu_memory_fraction = 0.4"


def read(source: str, before: str = "") -> ScriptContents:
    """Read a source, which must be one that Python can read."""
    found = read_script(before + textwrap.dedent(source), "train.py")
    assert not found.error
    return found


def only(source: str, before: str = "") -> Candidate:
    (candidate,) = read(source, before).candidates
    return candidate


def values(found: ScriptContents) -> list[tuple[str, str | None]]:
    return [(name, setting.value) for name, setting in found.settings]


def setting(source: str) -> Setting:
    ((_, one),) = read(source, "import os\n").settings
    return one
