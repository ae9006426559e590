"""Mistyped names of environment variables are found, and real ones left alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.env import find_misspelt
from tests.declared.tables import Case, cases


@cases("declared/names")
def test_a_slip_is_found_and_what_was_meant_is_said(case: Case) -> None:
    expected = [("misspelt", f"{case['name']} has no effect; {case['meant']} was meant")]
    assert [(hint.rule, hint.words) for hint in find_misspelt(["PATH", case["name"], "HOME"])] == expected


REAL = """
CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK ZE_FLAT_DEVICE_HIERARCHY ONEAPI_DEVICE_SELECTOR ASCEND_VISIBLE_DEVICES
ASCEND_RT_VISIBLE_DEVICES MUSA_VISIBLE_DEVICES MLU_VISIBLE_DEVICES MACA_VISIBLE_DEVICES TPU_VISIBLE_DEVICES
TPU_VISIBLE_CHIPS HABANA_VISIBLE_DEVICES XLA_CLIENT_MEM_FRACTION XLA_PYTHON_CLIENT_MEM_FRACTION XLA_FLAGS
XLA_PYTHON_CLIENT_ALLOCATOR XLA_PYTHON_CLIENT_PREALLOCATE PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF
PYTORCH_HIP_ALLOC_CONF PYTORCH_NPU_ALLOC_CONF PYTORCH_MUSA_ALLOC_CONF PYTORCH_XPU_ALLOC_CONF
PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NVML_BASED_CUDA_CHECK TF_GPU_ALLOCATOR TF_GPU_THREAD_MODE
TF_GPU_THREAD_COUNT TF_CPP_MIN_LOG_LEVEL TF_DETERMINISTIC_OPS TF_ENABLE_ONEDNN_OPTS TF_XLA_FLAGS
CUDA_DEVICE_MEMORY_LIMIT CUDA_DEVICE_MEMORY_LIMIT_0 CUDA_DEVICE_MEMORY_SHARED_CACHE CUDA_DEVICE_SM_LIMIT
CUDA_DEVICE_SM_LIMIT_1 CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_WAITS_ON_EXCEPTION CUDA_MPS_PIPE_DIRECTORY
CUDA_MPS_LOG_DIRECTORY CUDA_MPS_CLIENT_PRIORITY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_HOME CUDA_PATH
CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDA_CACHE_PATH CUDA_CACHE_MAXSIZE CUDA_VERSION
CUDA_MANAGED_FORCE_DEVICE_ALLOC CUDA_AUTO_BOOST GPU_PORTION GENV_GPUS GENV_GPU_MEMORY GENV_ENVIRONMENT_ID
NVIDIA_DRIVER_CAPABILITIES NVIDIA_REQUIRE_CUDA NVIDIA_GPU_MEMORY_LIMIT NVIDIA_GPU_MEMORY_REQUEST
NVIDIA_TF32_OVERRIDE SLURM_JOB_GPUS SLURM_STEP_GPUS SLURM_JOB_GPU SLURM_GPUS_ON_NODE GPUWATCH_SHARE
FLAGS_fraction_of_gpu_memory_to_use FLAGS_fraction_of_cpu_memory_to_use FLAGS_initial_cpu_memory_in_mb
FLAGS_fraction_of_cuda_pinned_memory_to_use FLAGS_reallocate_gpu_memory_in_mb OLLAMA_GPU_OVERHEAD
CUDA_VISIBLE_DEVICES_FOO CUDA_VISIBLE_DEVICES_ CUDA_VISIBLE_DEVICES2 CUDA_VISIBLE_DEVICE0 OLD_CUDA_VISIBLE_DEVICES
_CUDA_VISIBLE_DEVICES CUDA_VISIBLE_GPUS VISIBLE_DEVICES CUDA_DEVICES CUDA_DEVICE cuda_visible_devices
THEANORC THEANO_RC CUDA_VISÏBLE_DEVICES A PATH
"""


def test_a_real_name_is_no_slip() -> None:
    assert [name for name in REAL.split() if find_misspelt([name])] == []


def test_hints_come_in_the_order_of_the_names_and_are_few() -> None:
    words = [hint.words for hint in find_misspelt(["THEANO_FLAG", "CUDA_VISIBLE_DEVICE", "THEANO_FLAG"])]
    assert [line.split()[0] for line in words] == ["THEANO_FLAG", "CUDA_VISIBLE_DEVICE"]
    assert len(find_misspelt([f"CUDA_VISIBLE_DEVI{letter}ES" for letter in "ABDEFGHIJKLMNOPQRSTUVWXYZ"])) == 8
    assert find_misspelt(["CUDA_VISIBLE_DIVICES", "CUDA_VISIBLE_DEVICES"]) == []  # beside the right name


@given(st.lists(st.text(max_size=40) | st.text(alphabet="CUDA_VISIBLE_DEVICES", max_size=24), max_size=8))
def test_no_name_raises(names: list[str]) -> None:
    assert all(hint.words.isprintable() for hint in find_misspelt(names))
