"""What a server's configuration file says: vLLM's and SGLang's `--config`, read from the folders of real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.facts import Candidate, FrameworkConfig
from gpuwatch.declared.flags import candidates, parse_flat_yaml
from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector import reader
from gpuwatch.model.snapshot import Basis, Confidence, Declared, Kind, Margin
from tests.declared.tables import Case, cases
from tests.support.builders import GIB
from tests.support.declared import E, Explainer, gpu, said
from tests.support.process import LAUNCHER, ME, ROOT, sharing

pytestmark = pytest.mark.slow  # real processes

VLLM = ("-m", "vllm.entrypoints.openai.api_server", "--config", "serve.yaml")
SERVE = ("/usr/local/bin/vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", "--config", "serve.yaml")
SGLANG = ("-m", "sglang.launch_server", "--config", "serve.yaml")
PLAIN = """\
# what we serve
model: meta-llama/Llama-3.1-8B-Instruct
host: "127.0.0.1"
port: 6379
gpu-memory-utilization: 0.4   # two of us
uvicorn-log-level: "info"
"""
NESTED = """\
---
model: Qwen/Qwen3-30B-A3B
compilation-config:
  pass_config:
    fuse_allreduce_rms: true
  gpu-memory-utilization: 0.1
lora-modules:
- {name: sql, path: /models/sql}
- name: chat
  path: /models/chat
speculative-config: {"model": "draft", "num_speculative_tokens": 3}
chat-template: |
  gpu-memory-utilization: 0.2
allowed-origins: ["*"]
gpu_memory_utilization: .4
"""


@pytest.fixture
def explain(tmp_path: Path) -> Explainer:
    return Explainer(tmp_path, [gpu(0)])


def serving(explain: Explainer, config: str, *argv: str) -> Declared:
    (explain.folder / "serve.yaml").write_text(config)
    return explain.declared(*argv)


def default(declared: Declared) -> bool:
    """Return whether the default of the server is told as what it takes."""
    return any(one.kind is Kind.DEFAULT and one.effective for one in declared.declarations)


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        (PLAIN, VLLM),
        (NESTED, SERVE),
        ("'gpu-memory-utilization': '0.4'\n", VLLM),
        ("gpu-memory-utilization: 0.4", VLLM),
    ],
)
def test_vllms_file_is_read(explain: Explainer, config: str, argv: tuple[str, ...]) -> None:
    declared = serving(explain, config, *argv)
    assert explain.limits(declared) == {0: 32}
    flag = said(declared, "--gpu-memory-utilization")
    assert (flag.where, flag.value, flag.framework) == ("serve.yaml", 0.4, "vLLM")
    assert flag.line == next(n for n, line in enumerate(config.splitlines(), 1) if line.endswith((".4", "'", "us")))
    assert declared.limits[0].margin is Margin.BUDGET
    assert not default(declared)


def named(config: str, *argv: str) -> list[Candidate]:
    """Return the candidates of vLLM's command line and of a file that it names."""
    return candidates(("python", *VLLM, *argv), config=FrameworkConfig(path="serve.yaml", text=config))


def test_the_command_line_and_a_size_of_the_cache_come_before_the_file(explain: Explainer) -> None:
    assert explain.limits(serving(explain, PLAIN, *VLLM, "--gpu-memory-utilization", "0.5")) == {0: 40}
    assert explain.limits(serving(explain, PLAIN, *VLLM[:2], "--gpu_memory_utilization=0.5", *VLLM[2:])) == {0: 40}
    cache = serving(explain, PLAIN + "kv-cache-memory-bytes: 8589934592\n", *VLLM)
    assert (cache.limits, said(cache, "--kv-cache-memory-bytes").value) == ((), 8 * GIB)


@pytest.mark.parametrize("config", ["model: m\nport: 1\n", ""])
def test_a_file_without_the_key_leaves_the_default(explain: Explainer, config: str) -> None:
    declared = serving(explain, config, *VLLM)
    assert default(declared)
    assert declared.limits == ()


@pytest.mark.parametrize("value", ["1.5", "much", "", "yes"])
def test_a_value_that_vllm_refuses_limits_nothing(value: str) -> None:
    (one,) = named(f"model: m\ngpu-memory-utilization: {value}\n")
    assert one.value is None


@cases("declared/configs")
def test_a_file_that_is_more_than_keys_and_values_is_said_not_to_be_read(case: Case) -> None:
    (one,) = named(case["config"])
    assert (one.channel, one.dynamic) == ("--config", True)
    assert one.unread.startswith("serve.yaml was not read: line ")


def test_a_file_that_is_not_read_leaves_it_open_whether_there_is_a_limit(explain: Explainer) -> None:
    (explain.folder / "serve.yaml").write_text("- gpu-memory-utilization: 0.3\n")
    text = explain.text(*VLLM, held={0: 30})
    assert "serve.yaml was not read" in text
    assert "0.92" not in text
    assert "not known whether it declared a share" in text


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_a_file_that_is_missing_or_large_is_said_to_be_named(explain: Explainer, size: int) -> None:
    if size:
        (explain.folder / "serve.yaml").write_text(PLAIN + "#" * size)
    declared = explain.declared(*VLLM)
    assert said(declared, "--config").why.endswith("it could not be read")
    assert not default(declared)


@pytest.mark.skipif(not ROOT, reason="only root may become somebody else")
def test_a_file_that_its_owner_may_not_read_is_closed(public: Path) -> None:
    (public / "serve.yaml").write_text(PLAIN)
    (public / "serve.yaml").chmod(0o600)
    with sharing(*VLLM, cwd=public, first=f"drop({ME})") as process:
        declared = resolve(reader.read(process.pid), E)
    assert said(declared, "--config").why.endswith("it cannot be read: no permission")
    assert declared.limits == ()


def test_a_file_that_was_edited_after_the_start_is_doubted(explain: Explainer) -> None:
    path = explain.folder / "serve.yaml"
    path.write_text(PLAIN)
    later = path.stat().st_mtime + 3600
    os.utime(path, (later, later))
    declared = explain.declared(*VLLM)
    assert said(declared, "--gpu-memory-utilization").confidence is Confidence.STALE


def test_the_engine_below_a_server_is_held_to_the_file_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text(PLAIN)
    with sharing(*VLLM, cwd=tmp_path, first=LAUNCHER) as process:
        declared = resolve(reader.read(int(process.said[0])), E)
    assert said(declared, "--gpu-memory-utilization").value == 0.4


def test_sglangs_file_is_read(explain: Explainer) -> None:
    declared = serving(explain, "model-path: m\nmem-fraction-static: 0.7\n", *SGLANG)
    flag = said(declared, "--mem-fraction-static")
    assert (flag.kind, flag.basis, flag.value, flag.line) == (Kind.CACHE, Basis.FREE_AT_START, 0.7, 2)
    assert not default(declared)


def test_another_programs_file_is_not_read(explain: Explainer) -> None:
    (explain.folder / "serve.yaml").write_text(PLAIN)
    explain.write(train="import torch\n")
    assert "serve.yaml" not in explain.text("train.py", "--config", "serve.yaml", held={0: 1}).split("\n", 1)[1]


@given(
    st.text(),
    st.sampled_from(["", "gpu-memory-utilization: ", "kv_cache_memory_bytes: ", "'gpu-memory-utilization':\t"]),
)
def test_no_file_of_a_server_raises(text: str, key: str) -> None:
    assert isinstance(named(key + text), list)


NAMES = st.text("abcdefghijklmnopqrstuvwxyz-_", min_size=1, max_size=20).filter(lambda name: name[0].isalpha())
PLAINS = st.one_of(st.integers().map(str), st.floats(0, 1).map(repr), st.text("abcXYZ/.0189-", min_size=1, max_size=9))


@given(st.dictionaries(NAMES, PLAINS.filter(lambda text: text[0] != "-")))
def test_what_is_written_as_a_flat_file_is_read_again(values: dict[str, str]) -> None:
    text = "".join(f"{name}: {value}\n" for name, value in values.items())
    assert {name: value for name, (_, value) in parse_flat_yaml(text).items()} == values
