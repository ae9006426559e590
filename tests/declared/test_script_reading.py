"""How a source is read and shown, whatever is in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.facts import ScriptContents
from gpuwatch.declared.script import read_script
from gpuwatch.declared.script_lines import imported_names
from gpuwatch.declared.script_patterns import may_declare
from tests.declared.scanning import LIMIT, TF, TORCH, only, setting

# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_source_is_shown_in_one_line() -> None:
    candidate = only("tf.config.set_memory_growth(\n        gpus[0],\n        True,\n)", TF)
    assert (candidate.where, candidate.line) == ("train.py", 3)
    assert candidate.text == "tf.config.set_memory_growth( gpus[0], True, )"


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (f"LLM('{'m' * 200}', gpu_memory_utilization=0.4)", "LLM(… gpu_memory_utilization=0.4 …)"),
        (f"o = {{'a': '{'m' * 200}', 'gpu_mem_limit': 5}}", '{… "gpu_mem_limit": 5 …}'),
    ],
)
def test_of_a_long_call_the_part_that_declares_is_shown(source: str, shown: str) -> None:
    assert only(source, "from vllm import LLM\n").text == shown


@pytest.mark.parametrize("between", [" ", "\n" * 30, "  # one of eight\n" * 2])
def test_of_a_call_over_many_lines_both_ends_are_shown(between: str) -> None:
    padding = between.join(f"options[{place}]," for place in range(20))
    source = f"gpus[0], [LogicalDeviceConfiguration({padding}{between}memory_limit=1024)]"
    candidate = only(f"tf.config.set_logical_device_configuration({source})", TF)
    assert candidate.text.startswith("tf.config.set_logical_device_configuration(")
    assert candidate.text.endswith(" memory_limit=1024)])")
    assert "…" in candidate.text
    assert len(candidate.text) == 100


def test_what_is_shown_is_clean_bounded_and_without_secrets() -> None:
    one = setting(f"password = 1; os.environ['TF_A'] = f('\u202e', password='hunter2-hunter2', x='{'y' * 300}')")
    assert "hunter2" not in one.text
    assert "\u202e" not in one.text
    assert len(one.text) <= 100
    # Its name is cut away, and it stands where the end of the statement is shown.
    one = setting(f"os.environ['TF_A'] = f('{'y' * 300}', password='{'hunter2 ' * 12}')")
    assert "hunter2" not in one.text
    assert (
        read_script("import os\nos.environ['TF_A'] = '1'", "evil\x1b[31m.py").settings[0][1].where
        == "evil\ufffd[31m.py"
    )


def test_a_piece_of_a_line_with_wide_characters_is_cut_at_the_right_place() -> None:
    candidate = only("s = 'größe 😀'; torch.cuda.set_per_process_memory_fraction(0.5, 1)  # für alle", TORCH)
    assert candidate.text == "torch.cuda.set_per_process_memory_fraction(0.5, 1)"


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (f"print 'python 2'\n{LIMIT}", "line 1: Missing parentheses in call to 'print'. Did you mean print(...)?"),
        (f"{LIMIT}\nif (:\n", "line 2: invalid syntax"),
        (f"{LIMIT}\0", "source code string cannot contain null bytes"),
        (b"# coding: latin-9000\n" + LIMIT.encode(), "unknown encoding: latin-9000"),
        (b"# " + LIMIT.encode() + b"\xe9\n", "invalid or missing encoding declaration"),
        (b"\n\n# " + LIMIT.encode() + b"\xe9\n", "'utf-8' codec can't decode byte 0xe9"),
        (b"# coding: rot13\n" + LIMIT.encode(), "'rot13' is not a text encoding"),
        ("x = '\ud800'\n" + LIMIT, "surrogates not allowed"),
        (f"{LIMIT} + " + "(" * 150 + "1" + ")" * 150 + "+1" * 5000, "it is nested too deeply"),
        (f"x = {'-' * 20000}1\n{LIMIT}", "it is nested too deeply"),
        (f"x = {'(' * 5000}1\n{LIMIT}", "too many nested parentheses"),
    ],
)
def test_what_cannot_be_parsed_gives_the_reason(source: str | bytes, error: str) -> None:
    found = read_script(source)
    assert error in found.error
    assert (found.candidates, found.settings) == ((), ())


def test_a_source_that_cannot_be_parsed_still_shows_what_it_imports() -> None:
    found = read_script(f"import numpy as np, tensorflow as tf\nfrom keras.models import x\nprint 1\n{LIMIT}")
    assert found.imports == ("numpy", "tensorflow", "keras")


@pytest.mark.parametrize("name", ["a.ipynb", "script"])
def test_a_notebook_is_no_source(name: str) -> None:
    notebook = json.dumps({"cells": [{"source": [LIMIT]}], "nbformat": 4})
    assert read_script(notebook, name).error == "a notebook is not Python source"
    assert read_script(notebook.encode(), name).candidates == ()


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbf" + LIMIT.encode(),
        "\ufeff" + LIMIT,
        b"# -*- coding: latin-1 -*-\n# gr\xf6\xdfe\n" + LIMIT.encode(),
        LIMIT.replace(" ", "\t") + "\r\n",
        f"x = 1\r{LIMIT}",
        f"\f\n{LIMIT}",
        f"x = '\\d'; 1 is 1\n{LIMIT}",  # a SyntaxWarning, which would be an error here
    ],
)
def test_boms_cookies_line_ends_and_warnings_are_no_hindrance(source: str | bytes) -> None:
    found = read_script(source)
    assert not found.error
    assert [candidate.value for candidate in found.candidates] == [0.4]
    assert "per_process_gpu_memory_fraction" in found.candidates[0].text


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("import torch.nn as nn, os", ("torch", "os")),
        ("from jax import numpy", ("jax",)),
        ("from . import tensorflow\nfrom ..x import y", ()),
        ("def f():\n  import cupy", ("cupy",)),
        ("try:\n  import cupy as xp\nexcept ImportError:\n  import numpy as xp", ("cupy", "numpy")),
    ],
)
def test_imports_are_found_anywhere(source: str, imports: tuple[str, ...]) -> None:
    assert read_script(source).imports == imports
    assert read_script(f"{source}\n{LIMIT}").imports == imports


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"", False),
        (b"import torch\nmodel.cuda()", False),
        (b"os.environ['HOME'] = '/'", False),
        (b"print('CUDA')", False),
        (b"os.environ['CUDA_VISIBLE_DEVICES'] = '0'", True),
        (b"pool.set_limit(5)", True),
    ],
)
def test_a_source_without_any_telling_word_need_not_be_parsed(source: bytes, expected: bool) -> None:
    assert may_declare(source) is expected


@pytest.mark.parametrize(
    ("source", "unread"),
    [
        ("exec(open('a').read())", "exec(…) at line 2"),
        ("if a:\n  exec (compile(open('a').read(), 'a', 'exec'))", "exec(…) at line 3"),
        ("import builtins\nbuiltins.exec(a)", "builtins.exec(…) at line 3"),
        ("import runpy\nrunpy.run_path('a.py')", "runpy.run_path(…) at line 3"),
        ("runpy.run_module(mod_name='a')", "runpy.run_module(…) at line 2"),
        ("from importlib import import_module\nm = import_module(f'models.{a}')", "import_module(…) at line 3"),
        ("importlib.import_module(a)", "importlib.import_module(…) at line 2"),
        ("m = __import__(a)", "__import__(…) at line 2"),
        ("s = importlib.util.spec_from_file_location('a', p)", "importlib.util.spec_from_file_location(…) at line 2"),
        ("task = hydra.utils.instantiate(cfg.task)", "hydra.utils.instantiate(…) at line 2"),
        ("from hydra.utils import instantiate\nt = instantiate(cfg)", "instantiate(…) at line 3"),
        ("cli = LightningCLI()", "LightningCLI(…) at line 2"),
        ("class MyCLI(LightningCLI):\n  pass", "LightningCLI(…) at line 2"),
        ("uvicorn.run('app:app', port=1)", "uvicorn.run(…) at line 2"),
        ("sys.exit(load_entry_point('a', 'b', 'c')())", "load_entry_point(…) at line 2"),
        *(
            (harmless, "")
            for harmless in (
                "cursor.exec('x'); self.exec(y); app.exec_()",
                "# exec(a)",
                "def exec(a): pass",
                "import re; re.compile(a); model.eval()",
                "importlib.import_module('torch'); __import__('os').environ",
                "execute(a); my_exec(a); not_runpy.run_pathology(a)",
                "uvicorn.run(app)\nfrom lightning.pytorch.cli import LightningCLI\nreinstantiate(a)",
            )
        ),
    ],
)
def test_code_that_a_source_runs_from_elsewhere_is_named(source: str, unread: str) -> None:
    """Whether the source is parsed or not, or cannot be."""
    for after in ("", LIMIT, "import vllm\nprint 1"):
        assert read_script(f"x = 1\n{source}\n{after}").unread == (f"it runs other code: {unread}" if unread else "")


def test_a_module_that_is_imported_by_a_literal_name_is_an_import() -> None:
    assert imported_names(b"import_module('a.b'); importlib.import_module(x)\n__import__( \"c\" )") == ["a.b", "c"]


# -- for any input ----------------------------------------------------------------------------------------------------

WORDS = [
    "import tensorflow as tf",
    "gpus = tf.config.list_physical_devices('GPU')",
    "for g in gpus:",
    "if x:",
    "def f(a=1):",
    "class A:",
    "try:",
    "else:",
    "except E as e:",
    "with torch.cuda.device(1):",
    "match x:",
    "case [1, *a]:",
    "return f()",
    "global a",
    LIMIT,
    "tf.config.set_logical_device_configuration(gpus[0], [L(memory_limit=1)] * 2)",
    "os.environ['CUDA_VISIBLE_DEVICES'] = ','.join(str(i) for i in [1, 2])",
    "os.environ.update({**a, 'XLA_A': 1})",
    "pool.set_limit(*a, **b)",
    "a = b = (c, *d) = a",
    "f(f)(*f)[f](f)",
    "torch.cuda.set_per_process_memory_fraction(0.5)",
    "vllm.LLM(*a, **b)",
    "onnxruntime.InferenceSession(a, a, a, **{'gpu_mem_limit': 1})",
    "self.f().f(lambda: f(a))",
    "\\",
    "(",
    "'''",
]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(WORDS))))
def test_no_jumble_of_python_raises(lines: list[tuple[int, str]]) -> None:
    assert isinstance(read_script("\n".join("  " * depth + word for depth, word in lines)), ScriptContents)


@given(st.text())
def test_no_text_raises(text: str) -> None:
    assert isinstance(read_script(text), ScriptContents)
    assert isinstance(read_script(f"{text}\n{LIMIT}\n{text}"), ScriptContents)
