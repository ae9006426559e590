"""Flags of servers and workers: on their own program's command line only, and as that program reads them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.facts import Candidate
from gpuwatch.declared.flags import FLAGS, PROGRAMS, candidates, find_program
from gpuwatch.declared.frameworks import NAMES
from gpuwatch.model import Basis, Confidence, Kind, Margin

MIB = 1024**2
GIB = 1024**3


def read(line: str) -> list[Candidate]:
    """Return the candidates of a command line as a shell splits it."""
    return candidates(shlex.split(line))


# (command line up to its flag, flag, framework, kind, basis, value)
FLAGS_READ: list[tuple[str, str, str, Kind, Basis, float]] = [
    *(
        (line, flag, "vllm", Kind.CAP, Basis.TOTAL, 0.4)
        for line, flag in (
            ("vllm serve m", "--gpu-memory-utilization 0.4"),
            ("/usr/bin/python3 /usr/local/bin/vllm serve m", "--gpu-memory-utilization=0.4"),
            ("python3.11 -u -m vllm.entrypoints.openai.api_server --model m", "--gpu_memory_utilization .4"),
            ("python /opt/vllm/entrypoints/openai/api_server.py", "--gpu-memory-utilization .4"),
            ("vllm serve m --gpu-memory-utilization 0.9 --port 1", "--gpu_memory_utilization=0.4"),
        )
    ),
    ("vllm serve m", "--kv-cache-memory-bytes 25.6g", "vllm", Kind.CACHE, Basis.BYTES, 25.6e9),
    (
        *("python -m sglang.launch_server --model-path m", "--mem-fraction-static 0.8"),
        *("sglang", Kind.CACHE, Basis.FREE_AT_START, 0.8),
    ),
    (
        *("trtllm-serve m", "--kv_cache_free_gpu_memory_fraction 0.85"),
        *("tensorrt-llm", Kind.CACHE, Basis.FREE_AFTER_LOAD, 0.85),
    ),
    (
        *("trtllm-serve serve m --kv_cache_free_gpu_memory_fraction 0.85", "--free_gpu_memory_fraction=0.5"),
        *("tensorrt-llm", Kind.CACHE, Basis.FREE_AFTER_LOAD, 0.5),
    ),
    (
        *("lmdeploy serve api_server m", "--cache-max-entry-count 0.2"),
        *("lmdeploy", Kind.CACHE, Basis.FREE_AFTER_LOAD, 0.2),
    ),
    ("text-generation-launcher --model-id m", "--cuda-memory-fraction 0.5", "tgi", Kind.CAP, Basis.TOTAL, 0.5),
    (
        *("tensorflow_model_server", "--per_process_gpu_memory_fraction=0.5"),
        *("tensorflow", Kind.CAP, Basis.TOTAL, 0.5),
    ),
    (
        *("tritonserver --backend-config=python,shm=1", "--backend-config=tensorflow,gpu-memory-fraction=0.4"),
        *("triton", Kind.CAP, Basis.TOTAL, 0.4),
    ),
    ("dask cuda worker tcp://s:8786", "--rmm-pool-size 0.5", "dask", Kind.START, Basis.TOTAL, 0.5),
    ("/opt/bin/dask-cuda-worker", "--rmm-maximum-pool-size=1GB", "dask", Kind.CAP, Basis.BYTES, 1e9),
    ("python -m dask_cuda.cli worker", "--device-memory-limit 0.8", "dask", Kind.CACHE, Basis.TOTAL, 0.8),
]


@pytest.mark.parametrize(("line", "flag", "framework", "kind", "basis", "value"), FLAGS_READ)
def test_a_flag_is_read_as_its_program_reads_it(
    line: str, flag: str, framework: str, kind: Kind, basis: Basis, value: float
) -> None:
    (candidate,) = read(f"{line} {flag}")
    assert (candidate.framework, candidate.kind, candidate.basis, candidate.device) == (framework, kind, basis, None)
    assert candidate.value == pytest.approx(value)
    assert (candidate.text, candidate.where, candidate.void) == (flag, "command line", "")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "vllm serve m",
        "vllm serve m --gpu-memory 0.4",
        "vllm serve m -- --gpu-memory-utilization 0.4",
        "python train.py --gpu-memory-utilization 0.4",
        "python -c 'vllm' --gpu-memory-utilization 0.4",
        "python -m mypkg.vllm --gpu-memory-utilization 0.4",
        "python",
        "python -m",
        "python -W ignore",
        "grep --mem-fraction-static 0.8",
        "sglang serve --gpu-memory-utilization 0.4",
        "tensorflow_model_server --per_process_gpu_memory_fraction=0",
        "tritonserver --backend-config=tensorflow,gpu-memory-fraction=0.0",
        "tritonserver --backend-config=onnxruntime,gpu-memory-fraction=0.4",
        "llama-server -ngl 99 --fit-target 1024",
        "tritonserver --model-load-gpu-limit 0:0.8",
        "lmdeploy serve api_server m --cache-max-entry-count 1000",
        "dask worker --device-memory-limit 0.8",
    ],
)
def test_what_declares_nothing_is_no_candidate(line: str) -> None:
    assert read(line) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("vllm serve m --gpu-memory-utilization 1.4", "1.4 is not above 0 and up to 1"),
        ("vllm serve m --gpu-memory-utilization much", "much is no number"),
        ("vllm serve m --gpu-memory-utilization", "it was given no value"),
        ("vllm serve m --gpu-memory-utilization=", "nothing is no number"),
        ("vllm serve m --gpu-memory-utilization 0.4 --gpu-memory-utilization 4", "4 is not above 0 and up to 1"),
        ("python -m sglang.launch_server --mem-fraction-static 80", "80 is outside 0 to 1"),
    ],
)
def test_a_value_that_is_none_has_no_effect(line: str, why: str) -> None:
    (candidate,) = read(line)
    assert candidate.void == why
    assert candidate.value is None


def test_the_budget_of_vllm_is_ignored_beside_the_size_of_its_cache() -> None:
    cache = "--kv-cache-memory-bytes"
    budget, given_cache = read(f"vllm serve m --gpu-memory-utilization 0.4 {cache} 8G")
    assert budget.void == f"vLLM ignores it beside {cache}"
    assert (given_cache.kind, given_cache.value, given_cache.void) == (Kind.CACHE, 8 * GIB, "")
    budget, _ = read(f"vllm serve m --gpu-memory-utilization 0.4 {cache} lots")
    assert not budget.void


def test_the_margin_of_vllm_is_that_of_a_budget() -> None:
    assert read("vllm serve m --gpu-memory-utilization 0.4")[0].margin is Margin.BUDGET
    assert read("text-generation-launcher --cuda-memory-fraction 0.5")[0].margin is Margin.FRAMEWORK


def test_tritons_fraction_binds_one_of_its_backends_and_is_a_guess() -> None:
    (candidate,) = read("tritonserver --backend-config tensorflow,gpu-memory-fraction=0.4")
    assert candidate.confidence is Confidence.GUESS


def test_flags_keep_the_order_of_the_command_line_and_where_it_is() -> None:
    argv = shlex.split("dask-cuda-worker --rmm-maximum-pool-size 8GB --rmm-pool-size 4GB")
    found = candidates(argv, "command line of parent 812")
    assert [candidate.channel for candidate in found] == ["--rmm-maximum-pool-size", "--rmm-pool-size"]
    assert {candidate.where for candidate in found} == {"command line of parent 812"}


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        ("VLLM::EngineCore", "vllm"),
        ("VLLM::Worker_TP0", "vllm"),
        ("prod::EngineCore_DP0", "vllm"),
        ("prod::Worker_TP0", "vllm"),
        ("sglang::scheduler_TP0", "sglang"),
        ("ollama runner --model /m --port 1", "ollama"),
        ("/usr/local/bin/ollama serve", "ollama"),
        ("python3 -Xdev -W ignore -OO -m vllm.entrypoints.api_server", "vllm"),
        ("pypy3 -um lmdeploy serve", "lmdeploy"),
        ("python3.12 /opt/conda/bin/text-generation-server serve m", "tgi"),
        ("python /srv/lmdeploy/serve/openai/api_server.py m", "lmdeploy"),
        ("python launch_server.py", "sglang"),
        ("python api_server.py", "vllm"),
        ("python train.py", None),
        ("pythonista -m vllm", None),
        ("./api_server", None),
        ("python -uc 'import vllm' vllm", None),
        ("python - vllm", None),
        ("dask cuda config", None),
        *((title, None) for title in ("ray::Workerbee", "/opt/x::Worker", "EngineCore", "'a b::Worker'")),
    ],
)
def test_a_program_is_known_by_its_name_module_or_title(line: str, framework: str | None) -> None:
    found = find_program(shlex.split(line))
    assert (found.program.framework if found else None) == framework


def test_every_flag_belongs_to_a_program_and_every_framework_has_a_name() -> None:
    assert {flag.program for flag in FLAGS} <= {program.framework for program in PROGRAMS}
    for flag in FLAGS:
        owner = flag.framework or flag.program
        assert not owner or owner in NAMES
    assert {program.framework for program in PROGRAMS} <= set(NAMES)


WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from([name for flag in FLAGS for name in flag.names]),
    st.sampled_from([f"{name}=0.5" for flag in FLAGS for name in flag.names]),
    st.sampled_from(["0.5", "1:2", "-m", "--", "tensorflow,gpu-memory-fraction=1"]),
)


STARTS = st.sampled_from(["python", "vllm", "tritonserver", "dask-cuda-worker", "llama-server", "VLLM::", ""])


@given(STARTS, st.lists(WORDS, max_size=8))
def test_no_command_line_is_too_odd(first: str, rest: list[str]) -> None:
    for candidate in candidates([first, *rest]):
        assert candidate.text.isprintable()
        assert len(candidate.text) <= 80
        assert (candidate.value is None) == bool(candidate.void)
