"""Frameworks: detects which ones a process uses, and knows their defaults.

Names of libraries are those in wheels on pypi.org, looked up in: torch 1.8 to 2.13, tensorflow 2.21, jaxlib 0.10.2 and
jax-cuda12-pjrt 0.12, cupy-cuda12x 14.2, rmm-cu12 26.10, onnxruntime-gpu 1.31, paddlepaddle-gpu 2.6,
vllm 0.20. Those of Theano, Ray, LMDeploy, Triton, TensorRT-LLM and llama.cpp are from memory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping

from gpuwatch.base.programs import find_launcher
from gpuwatch.declared.facts import Candidate, Facts, Unread
from gpuwatch.declared.flags import find_program
from gpuwatch.model.snapshot import Basis, Confidence, Kind

NAMES: Mapping[str, str] = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
    "cupy": "CuPy",
    "theano": "Theano",
    "paddle": "PaddlePaddle",
    "onnxruntime": "ONNX Runtime",
    "rmm": "RMM",
    "ray": "Ray",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
    "lmdeploy": "LMDeploy",
    "tgi": "Text Generation Inference",
    "tensorflow-serving": "TensorFlow Serving",
    "triton": "Triton Inference Server",
    "dask": "Dask-CUDA",
    "llama.cpp": "llama.cpp",
    "ollama": "Ollama",
    "julia": "CUDA.jl",
    "spark": "Spark RAPIDS",
}
"""Name of each framework by its id, which candidates contain."""

_CERTAIN, _LIKELY = Confidence.CERTAIN, Confidence.LIKELY

_LIBRARIES = {
    # The CUDA parts of PyTorch: a build for CPUs has neither.
    "torch": ("libtorch_cuda", "libc10_cuda"),
    "tensorflow": ("libtensorflow", "_pywrap_tensorflow"),
    # JAX loads the plugin when it starts on a GPU; up to 0.4.30 everything was in one library.
    "jax": ("xla_cuda_plugin.so", "cuda_plugin_extension.so", "pjrt_c_api_gpu_plugin.so", "xla_extension.so"),
    # CuPy's modules have everyday names (memory, device, core); these no other package has.
    "cupy": ("_cub_reduction.", "_fusion_kernel.", "_carray."),
    "theano": ("libgpuarray", "cuda_ndarray.so", "libcuda_ndarray.so"),
    "paddle": ("libpaddle", "core_avx.so"),
    "onnxruntime": ("libonnxruntime_providers_cuda", "libonnxruntime_providers_tensorrt"),
    "rmm": ("librmm.so",),
    "ray": ("_raylet.so",),
    "vllm": ("_vllm_", "_moe_C.", "cumem_allocator."),
    "tensorrt-llm": ("libtensorrt_llm",),
    "lmdeploy": ("_turbomind.",),
    "triton": ("libtritonserver.so",),
    "llama.cpp": ("libllama.so",),
    "julia": ("libjulia.so", "libjulia-internal.so"),
}
"""Beginnings of file names of libraries, by the framework that they identify."""
_JAX_ON_CPU = "libjax_common.so"
"""Library of JAX without its plugin: JAX runs on the CPU, or has not started yet."""
_STARTS = tuple(start for starts in _LIBRARIES.values() for start in starts)

_IMPORTS = {
    **dict.fromkeys(("tensorflow", "tensorflow_probability", "tf_keras"), "tensorflow"),
    **dict.fromkeys(("jax", "flax", "optax", "haiku", "equinox"), "jax"),
    **dict.fromkeys(("torch", "torchvision", "torchaudio", "lightning", "pytorch_lightning", "accelerate"), "torch"),
    **dict.fromkeys(("cupy", "cupyx"), "cupy"),
    **dict.fromkeys(("theano", "pygpu"), "theano"),
    **dict.fromkeys(("paddle", "onnxruntime", "ray", "vllm", "sglang", "lmdeploy")),
    **dict.fromkeys(("rmm", "cudf", "cuml", "cugraph"), "rmm"),
    "tensorrt_llm": "tensorrt-llm",
    "dask_cuda": "dask",
    "llama_cpp": "llama.cpp",
}
"""Framework of each package with another name. Keras identifies no framework: it has three backends."""

_ON_HOST = """
    numpy scipy pandas polars sklearn skimage PIL matplotlib seaborn plotly tqdm rich yaml toml tomli h5py zarr pyarrow
    requests aiohttp httpx fastapi flask uvicorn pydantic click typer fire absl hydra omegaconf dotenv psutil pynvml
    wandb mlflow tensorboard tensorboardX comet_ml neptune datasets tokenizers safetensors huggingface_hub sentencepiece
    evaluate gym gymnasium nltk gensim sympy networkx optuna onnx openai librosa soundfile ml_collections joblib mpi4py
    pytest setuptools pkg_resources six attr attrs loguru ipdb IPython ipywidgets
"""
_PACKAGES = """
    cv2 numba torch_geometric torchmetrics torchtext torchdata timm einops transformers diffusers peft trl bitsandbytes
    deepspeed apex xformers flash_attn triton keras kornia albumentations monai stable_baselines3 spacy xgboost lightgbm
    catboost sentence_transformers ultralytics detectron2 chex orbax distrax numpyro pyro gpytorch dask distributed
    horovod pycuda cuda nvidia
"""
_WITH_ALLOCATOR = """
    tensorrt=TensorRT torch_tensorrt=TensorRT torch2trt=TensorRT ctranslate2=CTranslate2 faster_whisper=CTranslate2
    whisperx=CTranslate2 cuvs=rmm pylibraft=rmm cuspatial=rmm nvtabular=rmm insightface=onnxruntime rembg=onnxruntime
    paddleocr=paddle juliacall=julia julia=julia tvm=TVM mlc_llm=TVM faiss=Faiss nvidia=DALI pycuda=PyCUDA cuda=CUDA
    cv2=OpenCV numba=Numba xgboost=XGBoost lightgbm=LightGBM catboost=CatBoost warp=Warp taichi=Taichi mxnet=MXNet
    caffe=Caffe mindspore=MindSpore oneflow=OneFlow jittor=Jittor tinygrad=tinygrad open3d=Open3D pyopencl=PyOpenCL
    isaacgym=Isaac lmdeploy=lmdeploy tensorrt_llm=tensorrt-llm PyNvCodec=PyNvCodec PyNvVideoCodec=PyNvVideoCodec
    libfaiss=Faiss _swigfaiss=Faiss libnvinfer.so=TensorRT libctranslate2=CTranslate2 libdali=DALI libmxnet.so=MXNet
    _turbomind.=lmdeploy libtensorrt_llm=tensorrt-llm
"""
_OTHERS = dict(one.split("=") for one in _WITH_ALLOCATOR.split())
"""Packages, and beginnings of libraries, that take memory of a GPU by an allocator of their own and declare nothing.

Their values are a framework's id, or a name for display."""
_STARTS_OF_OTHERS = tuple(one for one in _OTHERS if one.startswith(("lib", "_")))
_ON_GPU_IF = dict.fromkeys(("numba", "xgboost", "lightgbm", "catboost"), re.compile(rb"cuda|gpu", re.IGNORECASE))
_ON_GPU_IF["cv2"] = re.compile(rb"cv2\.cuda|\bcuda_[A-Z]|DNN_\w+_CUDA")
"""Packages that use the CPU unless the source has such a word."""
PACKAGES = frozenset(_IMPORTS).union(_ON_HOST.split(), _PACKAGES.split(), _OTHERS)
"""Packages that many scripts import, and that limit no memory unless the script asks for it."""
_NOT_TORCH = {one for one in _IMPORTS if _IMPORTS[one] != "torch"}.union(_ON_HOST.split(), sys.stdlib_module_names)
"""Packages that do not use PyTorch in a program with vLLM."""

IMPLIED = {
    **dict.fromkeys(("vllm", "sglang", "tensorrt-llm", "lmdeploy", "tgi"), "torch"),
    "tensorflow-serving": "tensorflow",
    "dask": "rmm",
}
"""Framework on which another framework is built, and whose allocator it uses."""


_OWN_ALLOCATOR = frozenset(
    {"torch", "tensorflow", "jax", "cupy", "theano", "paddle", "onnxruntime", "rmm", "llama.cpp"}
)
"""Frameworks that take memory of a GPU by an allocator of their own."""


def others(packages: Iterable[str], source: bytes) -> tuple[str, ...]:
    """Return those of the packages of a source that take memory of a GPU and declare nothing, see `_OTHERS`."""
    used = (one for one in packages if one in _OTHERS and (one not in _ON_GPU_IF or _ON_GPU_IF[one].search(source)))
    return tuple(dict.fromkeys(_OTHERS[one] for one in used))


def allocators(frameworks: Iterable[str], facts: Facts) -> list[str]:
    """Return the allocators that may take memory of a GPU, except those of frameworks that chose to see no GPU.

    Programs for JAX hide the GPUs from TensorFlow, which reads their data: `set_visible_devices([], "GPU")`. A script
    that creates a vLLM engine, and may also use PyTorch itself, has vLLM too: its share limits only the engine.
    """
    last = {one.framework: one.ordinals for one in facts.contents.selections}
    using = [name for name in frameworks if name in _OWN_ALLOCATOR and last.get(name) != ()]
    imports, libraries = facts.contents.imports, facts.libraries
    may_use_torch = (
        not _NOT_TORCH.issuperset(imports) or facts.contents.unread or (facts.script and facts.script.modules)
    )
    if may_use_torch and "vllm" in imports and find_program(facts.argv) is None:
        using.append("vllm")
    mapped = () if isinstance(libraries, Unread) else [one for one in libraries if one.startswith(_STARTS_OF_OTHERS)]
    using += [_OTHERS[start] for start in _STARTS_OF_OTHERS if any(one.startswith(start) for one in mapped)]
    return list(dict.fromkeys((*using, *facts.contents.others)))


def identify(facts: Facts) -> dict[str, Confidence] | None:
    """Return the ids of a process's frameworks, each with its confidence; None where they are unknown. Never raises.

    The mapped libraries decide: a framework whose library is not mapped is not used. Programs that are known by a
    command line, the process's or an ancestor's, count too: they may be linked statically or use the GPU in another
    process. The script's imports count where no library of any framework is mapped (yet). None means that no framework
    can be excluded: the libraries cannot be read, or CUDA's library is not mapped yet, and there is no other evidence.
    """
    found = _from_libraries(facts)
    mapped = bool(found)
    own = find_program(facts.argv)
    if own:
        found[own.program.framework] = _CERTAIN
    for relative in facts.ancestors:
        above = find_program(relative.argv)
        if above:
            found.setdefault(above.program.framework, _LIKELY)
    if not mapped:
        for name in _IMPORTS.keys() & facts.contents.imports:
            found.setdefault(_IMPORTS[name] or name, _LIKELY)
    for name in IMPLIED.keys() & found:
        found.setdefault(IMPLIED[name], _LIKELY)
    if found:
        return {name: found[name] for name in NAMES if name in found}
    cuda = not isinstance(facts.libraries, Unread) and any(one.startswith("libcuda.so") for one in facts.libraries)
    return {} if cuda else None


def _from_libraries(facts: Facts) -> dict[str, Confidence]:
    if isinstance(facts.libraries, Unread):
        return {}
    # All beginnings in one search: of some 300 libraries a handful identifies a framework.
    telling = [one for one in facts.libraries if one.startswith(_STARTS)]
    found = {name: _CERTAIN for name, starts in _LIBRARIES.items() if any(one.startswith(starts) for one in telling)}
    # If another framework is on the GPU, JAX's XLA_PYTHON_CLIENT_MEM_FRACTION does not limit the memory held there.
    if not found and any(one.startswith(_JAX_ON_CPU) for one in facts.libraries):
        found["jax"] = _LIKELY
    return found


# -- defaults ---------------------------------------------------------------------------------------------------------


_DEFAULTS: Mapping[str, tuple[float | None, Basis, str]] = {
    # xla_gpu_allocator_config.h; 0.9 of what is free before jaxlib 0.4.1.
    "jax": (0.75, Basis.TOTAL, "0.75 of the GPU"),
    # gpu_device.cc, MinSystemMemory: what is free, less 225 MiB to 1800 MiB.
    "tensorflow": (None, Basis.NONE, "almost all free memory"),
    # vllm/config/cache.py; 0.9 up to vLLM 0.19.
    "vllm": (0.92, Basis.TOTAL, "0.92 of the GPU (0.9 before vLLM 0.20)"),
    # sglang/srt/server_args.py.
    "sglang": (None, Basis.FREE_AT_START, "most free memory, depending on the GPU's size"),
    # nvidia.github.io/TensorRT-LLM, KvCacheConfig.
    "tensorrt-llm": (0.9, Basis.FREE_AFTER_LOAD, "0.9 of the memory free after loading, for its cache"),
    # lmdeploy/messages.py.
    "lmdeploy": (0.8, Basis.FREE_AFTER_LOAD, "0.8 of the memory free after loading, for its cache"),
    # text-generation-inference/launcher/src/main.rs.
    "tgi": (1.0, Basis.TOTAL, "all of the GPU"),
    # server/src/command_line_parser.cc; tensorflow_backend: growth.
    "triton": (None, Basis.NONE, "what its backends need"),
}


def defaults(frameworks: Iterable[str]) -> list[Candidate]:
    """Return the defaults of frameworks as candidates of kind DEFAULT."""
    return [
        Candidate(
            channel="default",
            text=f"default of {NAMES[name]}: {text}",
            framework=name,
            kind=Kind.DEFAULT,
            basis=basis,
            value=value,
        )
        for name in frameworks
        if name in _DEFAULTS
        for value, basis, text in [_DEFAULTS[name]]
    ]


# -- memory that a framework does not count itself --------------------------------------------------------------------

_RUNTIME = re.compile(r"lib(?:cudart|nvrtc-builtins)(?:-[0-9a-f]+)?\.so\.([0-9]{1,2})\.([0-9]{1,2})(\.[0-9]+)?")


def eager(facts: Facts) -> bool:
    """Return whether a process certainly loads all of CUDA's kernels at once, which takes hundreds of MiB more.

    True for CUDA_MODULE_LOADING=EAGER, and for a CUDA runtime before 11.7, by the name of its library:
    `libcudart.so.11.4.148`, `libcudart-1b201d85.so.10.1`. The runtimes of pip's wheels for CUDA 11 are all called
    `libcudart.so.11.0`, and a static runtime has no file: then only `libnvrtc-builtins.so.11.3` shows the version. It
    is mapped after a kernel was compiled; without it the answer is False. From 11.7 to 12.1 the answer is False too:
    loading is eager by default, but PyTorch asks for lazy loading. Source: docs.nvidia.com/cuda/cuda-programming-guide,
    "Lazy Loading"; github.com/pytorch/pytorch/pull/86509.
    """
    if not isinstance(facts.environ, Unread) and facts.environ.get("CUDA_MODULE_LOADING") == "EAGER":
        return True
    if isinstance(facts.libraries, Unread):
        return False
    found = [((int(one[1]), int(one[2])), one[3]) for one in map(_RUNTIME.fullmatch, facts.libraries) if one]
    return any(version < (11, 7) and (version, patch) != ((11, 0), None) for version, patch in found)


def collective(facts: Facts) -> bool:
    """Return whether a process is one of several that exchange data by NCCL, which needs buffers of its own.

    WORLD_SIZE decides where it is set, else a launcher among the ancestors; where the libraries can be read, NCCL must
    be one of them.
    """
    if not isinstance(facts.libraries, Unread) and not any(one.startswith("libnccl.so") for one in facts.libraries):
        return False
    if not isinstance(facts.environ, Unread) and "WORLD_SIZE" in facts.environ:
        size = facts.environ["WORLD_SIZE"].strip()
        return size.isascii() and size.isdecimal() and size.lstrip("0") not in ("", "1")
    launchers = (find_launcher(relative.argv) for relative in facts.ancestors)
    return any(one in ("torchrun", "accelerate", "deepspeed", "mpirun") for one in launchers)
