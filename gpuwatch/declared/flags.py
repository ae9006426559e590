"""What flags on the command lines of servers and workers say of a GPU.

A flag counts only on the command line of its own program, spelt out in full: `--mem` for `--mem-fraction-static`
is passed over, because what it means depends on the program's other flags. Where a program takes the last of
several (argparse, click), so do we.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gpuwatch.declared import flat_yaml, sizes
from gpuwatch.declared.env import weakest
from gpuwatch.declared.facts import SHOWN, Claim, Config, Unread, said, shown, void
from gpuwatch.declared.programs import started
from gpuwatch.model import Confidence, Kind, Margin
from gpuwatch.text import clean


class Flag(NamedTuple):
    """One flag of one program."""

    program: str
    """The framework id of its `programs.Program`; empty for genv-docker."""
    name: str
    kind: Kind
    reads: sizes.Reader
    framework: str | None = None
    """Whose claim it is, where that is not the program's."""
    margin: Margin = Margin.FRAMEWORK
    either: bool = False
    """Whether `_` stands for `-` as well. Source: vllm/utils, FlexibleArgumentParser."""
    joined: bool = False
    """Whether only `--flag=value` is understood. Source: tensorflow/core/util/command_line_flags.cc."""
    repeats: bool = False
    """Whether it may be given once for each device; else the last one counts."""
    prefix: str = ""
    """How a value starts that is meant here: `tensorflow,gpu-memory-fraction=` of `--backend-config`."""
    confidence: Confidence = Confidence.CERTAIN


_FREE_AFTER_LOAD = sizes.fraction_of_free_after_load

FLAGS = (
    # vllm/config/cache.py: above 0, up to 1, of the total; the budget of the whole instance.
    Flag(
        "vllm",
        "--gpu-memory-utilization",
        Kind.CAP,
        sizes.positive_fraction,
        margin=Margin.BUDGET,
        either=True,
    ),
    Flag("vllm", "--kv-cache-memory-bytes", Kind.CACHE, sizes.vllm, either=True),
    # sglang/srt/server_args.py; model_runner_kv_cache_mixin.py: of what is free before the weights are loaded.
    Flag("sglang", "--mem-fraction-static", Kind.CACHE, sizes.fraction_of_free_at_start),
    # nvidia.github.io/TensorRT-LLM/commands/trtllm-serve: the two are one option; trtllm-bench shortens it.
    Flag("tensorrt-llm", "--free_gpu_memory_fraction", Kind.CACHE, _FREE_AFTER_LOAD),
    Flag("tensorrt-llm", "--kv_cache_free_gpu_memory_fraction", Kind.CACHE, _FREE_AFTER_LOAD),
    Flag("tensorrt-llm", "--kv_cache_free_gpu_mem_fraction", Kind.CACHE, _FREE_AFTER_LOAD),
    # lmdeploy/messages.py: of what is free since 0.2.2, of the total in 0.2.0 and 0.2.1.
    Flag("lmdeploy", "--cache-max-entry-count", Kind.CACHE, sizes.fraction_or_blocks),
    # text-generation-inference/launcher/src/main.rs.
    Flag("tgi", "--cuda-memory-fraction", Kind.CAP, sizes.fraction),
    # tensorflow/serving/model_servers/main.cc: 0 leaves it to TensorFlow, whose session it configures.
    Flag(
        "tensorflow-serving",
        "--per_process_gpu_memory_fraction",
        Kind.CAP,
        sizes.fraction_or_off,
        framework="tensorflow",
        joined=True,
    ),
    # tensorflow_backend/src/tensorflow.cc. A guess: models of other backends in the same process take more.
    Flag(
        "triton",
        "--backend-config",
        Kind.CAP,
        sizes.fraction_or_off,
        prefix="tensorflow,gpu-memory-fraction=",
        confidence=Confidence.GUESS,
    ),
    # server/src/command_line_parser.cc: a pool of the server's own, which the backends take no notice of.
    Flag("triton", "--cuda-memory-pool-byte-size", Kind.START, sizes.device_bytes, repeats=True),
    Flag("triton", "--model-load-gpu-limit", Kind.RESERVE, sizes.device_left_free, repeats=True),
    # dask_cuda/cli.py: the first size of the pool, its largest, and the one from which it spills to the host.
    Flag("dask", "--rmm-pool-size", Kind.START, sizes.dask),
    Flag("dask", "--rmm-maximum-pool-size", Kind.CAP, sizes.dask),
    Flag("dask", "--device-memory-limit", Kind.CACHE, sizes.dask),
    # llama.cpp common/arg.cpp: a margin on each device; there is no cap.
    Flag("llama.cpp", "--fit-target", Kind.RESERVE, sizes.mib_by_device),
    Flag("llama.cpp", "-fitt", Kind.RESERVE, sizes.mib_by_device),
    # genv-docker/README.md: it becomes GENV_GPU_MEMORY.
    Flag("", "--gpu-memory", Kind.GRANT, sizes.genv, margin=Margin.EXACT),
)

_VLLM_CACHE = "--kv-cache-memory-bytes"
"""Given, it takes the place of --gpu-memory-utilization. Source: vllm/config/cache.py."""
_CONFIG = "--config"
_CONFIGURED = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}
"""Programs that read options from a YAML file, and what each takes most of its memory by; the command line counts
first. Sources: vllm/utils/argparse_utils.py, FlexibleArgumentParser; sglang/srt/server_args_config_parser.py."""
_MANY = 64
"""Flags that are kept of one command line: a command line may have a hundred thousand."""
_SAME = {
    "--kv_cache_free_gpu_memory_fraction": "--free_gpu_memory_fraction",
    "--kv_cache_free_gpu_mem_fraction": "--free_gpu_memory_fraction",
    "-fitt": "--fit-target",
}
"""Spellings of one option: the last of them all counts."""


def config_file(argv: Sequence[str]) -> str | None:
    """Give the path of the file in which a command line gives its options; None for none. Never raises.

    Both programs know it as two words, and once.
    """
    found = started(argv)
    if found is None or found.program.framework not in _CONFIGURED or found.arguments.count(_CONFIG) != 1:
        return None
    place = found.arguments.index(_CONFIG) + 1
    return found.arguments[place] if place < len(found.arguments) else None


def claims(argv: Sequence[str], where: str = "command line", config: Config | None = None) -> list[Claim]:
    """Give what a command line says, in its order; nothing where it starts no program that we know. Never raises.

    A value that its program would not take gives a claim that is `void`. `config` is the file that it names; what the
    file says counts where the command line does not say it.
    """
    found = started(argv)
    if found is None:
        return []
    table = [flag for flag in FLAGS if flag.program == found.program.framework]
    given: dict[tuple[str, int | str | None], tuple[Flag, list[Claim]]] = {}
    made = [(flag, _read(flag, value, text, where)) for flag, value, text in _given(found.arguments, table)]
    if config is not None:
        made = [*_configured(config, table, {flag.name for flag, _ in made}), *made]
    for flag, several in made:
        device = several[0].device if flag.repeats and several else None
        key = (_SAME.get(flag.name, flag.name), device)
        if key not in given and len(given) >= _MANY:
            continue
        # Taken out first, so that the order stays that of the command line.
        given.pop(key, None)
        given[key] = (flag, several)
    ignored = any(flag.name == _VLLM_CACHE and made and not made[0].void for flag, made in given.values())
    return [
        void(claim, f"vLLM ignores it beside {_VLLM_CACHE}") if ignored and flag.margin is Margin.BUDGET else claim
        for flag, made in given.values()
        for claim in made
    ]


def _configured(config: Config, table: Sequence[Flag], said: Collection[str]) -> Iterator[tuple[Flag, list[Claim]]]:
    """Give what a server's file says; of one that was not read that it may say something, unless it was `said`."""
    sure = Confidence.STALE if config.edited else Confidence.LIKELY if config.likely else Confidence.CERTAIN
    by_name = {flag.name: flag for flag in table}
    try:
        for key, (line, value) in _scalars(config).items():
            flag = by_name.get(f"--{key.replace('_', '-')}")
            if flag is None:
                continue
            if not value or value[0] in "[{":
                raise ValueError(f"line {line} is more than a value")
            made = _read(flag, value, f"{key}: {value}", config.path)
            yield flag, [replace(one, line=line, confidence=weakest(one.confidence, sure)) for one in made]
    except ValueError as error:
        flag = by_name[next(name for name in _CONFIGURED.values() if name in by_name)]
        if flag.name not in said:
            words = f"{config.path} was named and not read: {error}"
            named = _read(flag, "", f"{_CONFIG} {config.path}", "command line")[0]
            unknown = replace(named, channel=_CONFIG, void="", dynamic=True, unread=clean(words, 2 * SHOWN))
            yield flag, [unknown]


def _scalars(config: Config) -> dict[str, tuple[int, str]]:
    """Read a server's file; raises ValueError with the reason."""
    if isinstance(config.text, Unread):
        raise ValueError("it is not ours to read" if config.text is Unread.DENIED else "it could not be read")
    return flat_yaml.scalars(config.text)


def _given(arguments: Sequence[str], table: Sequence[Flag]) -> Iterable[tuple[Flag, str | None, str]]:
    """Find the flags among arguments: each with its value, None for a missing one, and as it was written."""
    by_name = {flag.name: flag for flag in table}
    for place, argument in enumerate(arguments):
        if argument == "--":
            return
        name, equals, value = argument.partition("=")
        flag = by_name.get(name) or _either(by_name, name)
        if flag is None:
            continue
        if equals:
            text = argument
        elif flag.joined or place + 1 >= len(arguments):
            yield flag, None, argument
            continue
        else:
            value = arguments[place + 1]
            text = f"{argument} {value}"
        if value.startswith(flag.prefix):
            yield flag, value.removeprefix(flag.prefix), text


def _either(by_name: dict[str, Flag], name: str) -> Flag | None:
    flag = by_name.get(name.replace("_", "-")) if name.startswith("--") else None
    return flag if flag is not None and flag.either else None


def _read(flag: Flag, value: str | None, text: str, where: str) -> list[Claim]:
    claim = Claim(
        channel=flag.name,
        where=where,
        text=shown(text),
        framework=flag.program if flag.framework is None else flag.framework,
        kind=flag.kind,
        margin=flag.margin,
        confidence=flag.confidence,
    )
    return [void(claim, "it was given no value")] if value is None else said(claim, value, flag.reads)
