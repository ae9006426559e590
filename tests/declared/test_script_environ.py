"""Which variables a source sets, and how sure it is that they count."""

from __future__ import annotations

import pytest

from tests.support.scanning import LIKELY, read, setting, values


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '2'", [("CUDA_VISIBLE_DEVICES", "2")]),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = str(2)", [("CUDA_VISIBLE_DEVICES", "2")]),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu", [("CUDA_VISIBLE_DEVICES", None)]),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = 2", [("CUDA_VISIBLE_DEVICES", None)]),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = 'a\\0b'", [("CUDA_VISIBLE_DEVICES", None)]),
        ("os.environ['CUDA_VISIBLE_DEVICES']: str = ''", [("CUDA_VISIBLE_DEVICES", "")]),
        ("os.environ['CUDA_VISIBLE_DEVICES'] += ',3'", [("CUDA_VISIBLE_DEVICES", None)]),
        ("del os.environ['CUDA_VISIBLE_DEVICES']", [("CUDA_VISIBLE_DEVICES", None)]),
        ("os.environ.pop('CUDA_VISIBLE_DEVICES', None)", [("CUDA_VISIBLE_DEVICES", None)]),
        ("os.unsetenv('CUDA_VISIBLE_DEVICES')", [("CUDA_VISIBLE_DEVICES", None)]),
        ("os.putenv('XLA_PYTHON_CLIENT_MEM_FRACTION', '.4')", [("XLA_PYTHON_CLIENT_MEM_FRACTION", ".4")]),
        ("os.environ.update({'TF_A': '1', 'HOME': '/', 'CUPY_B': x})", [("TF_A", "1"), ("CUPY_B", None)]),
        ("os.environ.update(TF_A='1', HOME='/')", [("TF_A", "1")]),
        ("more = {'TF_A': '1'}\nos.environ.update(more, TF_B='2')", [("TF_A", "1"), ("TF_B", "2")]),
        ("os.environ |= {'TF_A': '1'}", [("TF_A", "1")]),
        ("a = b | {'TF_A': '1'}", []),
        ("a |= {'TF_A': '1'}; os.environ", []),
        ("env = os.environ\nenv['THEANO_FLAGS'] = 'device=cuda0'", [("THEANO_FLAGS", "device=cuda0")]),
        ("from os import environ as e\ne['GENV_GPUS'] = '1'", [("GENV_GPUS", "1")]),
        ("os.environ['TF_A'] = os.environ['TF_B'] = '1'", [("TF_A", "1"), ("TF_B", "1")]),
        ("os.environ['TF_A'], os.environ['TF_B'] = '1', '2'", [("TF_A", None), ("TF_B", None)]),
        ("os.environ['TF_A'], x = pair()", [("TF_A", None)]),
        ("os.environ['CUDA_VISIBLE_DIVICES'] = '2'", [("CUDA_VISIBLE_DIVICES", "2")]),
        ("os.environ['CUDA_DEVICE_MEMORY_LIMIT_' + str(1)] = '1g'", [("CUDA_DEVICE_MEMORY_LIMIT_1", "1g")]),
        ("os.environ['PATH'] = '/bin'", []),
        ("os.environ[name] = 'CUDA'", []),
        ("os.environ['NVIDIA_API_KEY'] = 'nvapi-0'", []),
        ("settings['CUDA_VISIBLE_DEVICES'] = '2'  # environ", []),
        ("os.environ.get('CUDA_VISIBLE_DEVICES')", []),
        ("import paddle\npaddle.set_flags({'FLAGS_gpu_memory_limit_mb': 512})", [("FLAGS_gpu_memory_limit_mb", "512")]),
        ("import gflags\ngflags.set_flags({'FLAGS_gpu_memory_limit_mb': 512})", []),
    ],
)
def test_variables_that_a_source_sets(source: str, expected: list[tuple[str, str | None]]) -> None:
    assert values(read(source, "import os\n")) == expected


@pytest.mark.parametrize(
    ("source", "default"),
    [
        ("os.environ['TF_A'] = '1'", False),
        ("os.environ.setdefault('TF_A', '1')", True),
        ("os.environ['TF_A'] = os.environ.get('TF_A', '1')", True),
        ("os.environ['TF_A'] = os.getenv('TF_A', '1')", True),
    ],
)
def test_a_variable_that_is_set_only_where_it_is_not_is_told_apart(source: str, default: bool) -> None:
    one = setting(source)
    assert (one.value, one.default, one.confidence) == ("1", default, LIKELY)


def test_a_default_from_another_variable_is_only_known_at_run_time() -> None:
    assert setting("os.environ['TF_A'] = os.environ.get('TF_B', '1')").value is None
