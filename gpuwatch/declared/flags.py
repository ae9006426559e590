"""Flags of known servers and workers that limit GPU memory, and the configuration files that they name.

Servers' files are flat, and only two of their keys are needed. PyYAML would be a new dependency, and reads aliases and
merge keys, with which 400 bytes can fill any memory; here a file is read line by line and needs only its own size.

`vllm serve m`, `python /usr/local/bin/vllm serve m`, `python -m vllm.entrypoints.openai.api_server` and the title
`VLLM::EngineCore` are all vLLM.

A flag counts on the command line of its own program. Where that uses argparse, a beginning that no other flag of it
has counts too: `--gpu-memory-util`; a shorter one (`--mem`) is possible. As in argparse and click, the last of equal
flags counts. On any other command line a word of `SHARE_WORDS` with a value is possible: code that
is not read decides what it does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gpuwatch.base import programs
from gpuwatch.base.programs import SourceKind
from gpuwatch.base.text import clean, mask
from gpuwatch.declared import sizes
from gpuwatch.declared.env import file_confidence
from gpuwatch.declared.facts import SHOWN, Candidate, FrameworkConfig, Unread, format_excerpt, parse_value, void
from gpuwatch.model.snapshot import Confidence, Kind, Margin

_KEY = r"""(?:"([^"\\]*)"|'([^']*)'|([^\W\d][\w./-]*))[ \t]*:(?:[ \t]+(.*))?"""
_QUOTED = r"""(?:"([^"\\]*)"|'((?:[^']|'')*)')[ \t]*(?:#.*)?"""


def parse_flat_yaml(text: str) -> dict[str, tuple[int, str]]:
    """Return the line and the text of each top-level key of a YAML file; an empty text if not on that line.

    Lists and blocks below a key are ignored. Raises ValueError, with the line, for a file that has more than one
    document, aliases, tags, merge keys, or values that run over several lines.
    """
    found: dict[str, tuple[int, str]] = {}
    nested = False
    begun = False
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = raw.rstrip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first, begun = not begun, True
        if line == "---" and first:
            continue
        if line[0] in " \t" or line == "-" or line.startswith("- "):
            if not nested:
                raise ValueError(f"line {number} belongs to no known key")
            continue
        match = re.fullmatch(_KEY, line)
        if match is None:
            raise ValueError(f"line {number} is not a key with a value")
        value = (match[4] or "").strip()
        nested = not value or value[0] in "|>#"
        key = next(key for key in match.groups()[:3] if key is not None)
        found[key] = (number, "" if nested else _scalar(value, number))
    return found


def _scalar(value: str, number: int) -> str:
    """Return the text of a value on one line."""
    if value[0] in "\"'":
        quoted = re.fullmatch(_QUOTED, value)
        if quoted is None:
            raise ValueError(f"line {number} has an open quote or an escape")
        return quoted[1] if quoted[1] is not None else quoted[2].replace("''", "'")
    plain = re.split(r"[ \t]#", value, maxsplit=1)[0].rstrip()
    closing = {"{": "}", "[": "]"}.get(plain[0])
    if plain[0] in "&*!%@`" or (closing is not None and not plain.endswith(closing)):
        raise ValueError(f"line {number} is not a plain value")
    return plain


class Program(NamedTuple):
    """Names of the programs of one framework."""

    framework: str
    """Framework's id in `frameworks.NAMES`."""
    names: tuple[str, ...] = ()
    """File names of a binary or of a Python script, without `.py`."""
    modules: tuple[str, ...] = ()
    """Modules that follow `python -m`; their submodules count too."""
    title: str = ""
    """Regular expression for the beginning of the titles that its processes set; empty for none."""
    runs_others: bool = False
    """Whether it runs code of its users, which may declare more than its flags."""


class Started(NamedTuple):
    """Known program that a command line starts, and its arguments."""

    program: Program
    arguments: tuple[str, ...]


_TRTLLM = "trtllm-serve trtllm-bench trtllm-eval trtllm-llmapi-launch"
# vllm, set_process_title: VLLM_PROCESS_NAME_PREFIX takes the place of VLLM.
_VLLM = r"VLLM::|[^/\s]{1,64}::(?:EngineCore|Worker|APIServer|DPCoordinator)(?![a-z])"
_LLAMA = "llama-server llama-cli llama-bench llama-run llama-mtmd-cli llama-embedding llama-perplexity"

PROGRAMS = (
    Program("vllm", names=("vllm",), modules=("vllm",), title=_VLLM),
    Program("sglang", names=("sglang",), modules=("sglang",), title="sglang::"),
    Program("tensorrt-llm", names=tuple(_TRTLLM.split()), modules=("tensorrt_llm",)),
    Program("lmdeploy", names=("lmdeploy",), modules=("lmdeploy",)),
    Program("tgi", names=("text-generation-launcher", "text-generation-server"), modules=("text_generation_server",)),
    Program("tensorflow-serving", names=("tensorflow_model_server",)),
    Program("triton", names=("tritonserver",)),
    Program("dask", names=("dask-cuda-worker",), modules=("dask_cuda",), runs_others=True),
    Program("llama.cpp", names=tuple(_LLAMA.split()), modules=("llama_cpp",)),
    Program("ollama", names=("ollama", "ollama_llama_server")),
    Program("spark", names=("spark-submit", "spark-shell", "spark-sql", "pyspark"), runs_others=True),
)

_SCRIPTS = {
    "api_server": (("/vllm/", "vllm"), ("/lmdeploy/", "lmdeploy"), ("", "vllm")),
    "launch_server": (("/sglang/", "sglang"), ("", "sglang")),
}
"""Scripts with a common name: their framework by their folder; the last entry is the most likely."""

_BY_FRAMEWORK = {program.framework: program for program in PROGRAMS}
_BY_NAME = {name: program for program in PROGRAMS for name in program.names}
_BY_MODULE = {name: program for program in PROGRAMS for name in program.modules}
_TITLES = tuple((re.compile(program.title), program) for program in PROGRAMS if program.title)


@functools.lru_cache(maxsize=32)  # it is asked several times about each process and its ancestors
def find_program(argv: tuple[str, ...]) -> Started | None:
    """Return the known program that a command line starts; None for any other program. Never raises."""
    for title, program in _TITLES:
        if argv and title.match(argv[0]):
            return Started(program, ())
    name, arguments, source = programs.parse_command(argv)
    if source is not None and source.kind is not SourceKind.FILE:
        found = _BY_MODULE.get(name.partition(".")[0]) if source.kind is SourceKind.MODULE else None
        return Started(found, arguments) if found else None
    name = name.removesuffix(".py")
    found = _BY_NAME.get(name)
    if found is None and source is not None and source.text.endswith(".py"):
        owners = _SCRIPTS.get(name, ())
        found = next((_BY_FRAMEWORK[owner] for folder, owner in owners if folder in source.text), None)
    if name == "dask" and arguments[:2] == ("cuda", "worker"):
        found = _BY_FRAMEWORK["dask"]
    if name == "java" and any(word.startswith("org.apache.spark.") for word in arguments):
        found = _BY_FRAMEWORK["spark"]
    return Started(found, arguments) if found else None


def find_unread(argv: tuple[str, ...]) -> str:
    """Return why the code that a command line runs is not read; empty where it can declare only by flags."""
    found = find_program(argv)
    known = found is not None and not found.program.runs_others
    return "" if known else mask(programs.unread_code(argv), 2 * SHOWN)


class Flag(NamedTuple):
    """Flag of a program that declares a share."""

    program: str
    """Framework id of the flag's `Program`."""
    names: tuple[str, ...]
    """Spellings of the option, with `-`; the last occurrence on a command line counts."""
    kind: Kind
    parse: sizes.Parser
    framework: str = ""
    """Framework of the candidate, where it differs from the program's."""
    margin: Margin = Margin.FRAMEWORK
    prefix: str = ""
    """Beginning that a value must have: `tensorflow,gpu-memory-fraction=` of `--backend-config`."""
    confidence: Confidence = Confidence.CERTAIN
    shortest: str = ""
    """Beginning of its name that no other flag of the program has, where the program accepts it; else empty."""


_VLLM_CACHE = "--kv-cache-memory-bytes"
"""Flag that replaces --gpu-memory-utilization where it is given. Source: vllm/config/cache.py."""
_TRTLLM_FRACTION = (
    *("--free-gpu-memory-fraction", "--kv-cache-free-gpu-memory-fraction"),
    "--kv-cache-free-gpu-mem-fraction",  # trtllm-bench shortens it
)

_RAPIDS = "spark.rapids.memory.gpu."
_NO_POOL = f"{_RAPIDS}pool=NONE"
_CONF = ("--conf", "-c", "-D")

FLAGS = (
    # vllm/config/cache.py: above 0, up to 1, of the total; the budget of the whole instance.
    Flag(
        "vllm", ("--gpu-memory-utilization",), Kind.CAP, sizes.positive_fraction, "", Margin.BUDGET, shortest="--gpu-m"
    ),
    Flag("vllm", (_VLLM_CACHE,), Kind.CACHE, sizes.vllm, shortest="--kv-cache-mem"),
    # sglang/srt/server_args.py; model_runner_kv_cache_mixin.py: of what is free before the weights are loaded.
    Flag("sglang", ("--mem-fraction-static",), Kind.CACHE, sizes.fraction_of_free_at_start, shortest="--mem-f"),
    # nvidia.github.io/TensorRT-LLM/commands/trtllm-serve.
    Flag("tensorrt-llm", _TRTLLM_FRACTION, Kind.CACHE, sizes.fraction_of_free_after_load),
    # lmdeploy/messages.py: of what is free since 0.2.2, of the total in 0.2.0 and 0.2.1.
    Flag("lmdeploy", ("--cache-max-entry-count",), Kind.CACHE, sizes.fraction_or_blocks, shortest="--cache-m"),
    # text-generation-inference/launcher/src/main.rs.
    Flag("tgi", ("--cuda-memory-fraction",), Kind.CAP, sizes.fraction),
    # tensorflow/serving/model_servers/main.cc: 0 leaves it to TensorFlow, whose session it configures.
    Flag("tensorflow-serving", ("--per-process-gpu-memory-fraction",), Kind.CAP, sizes.fraction_or_off, "tensorflow"),
    # tensorflow_backend/src/tensorflow.cc. A guess: models of other backends in the same process take more.
    Flag(
        "triton",
        ("--backend-config",),
        Kind.CAP,
        sizes.fraction_or_off,
        prefix="tensorflow,gpu-memory-fraction=",
        confidence=Confidence.GUESS,
    ),
    # dask_cuda/cli.py: the first size of the pool, its largest, and the one from which it spills to the host.
    Flag("dask", ("--rmm-pool-size",), Kind.START, sizes.dask),
    Flag("dask", ("--rmm-maximum-pool-size",), Kind.CAP, sizes.dask),
    Flag("dask", ("--device-memory-limit",), Kind.CACHE, sizes.dask),
    # spark-rapids, RapidsConf.scala: of the total, of what is free at the start, and what RMM leaves free.
    Flag("spark", _CONF, Kind.CAP, sizes.fraction, prefix=f"{_RAPIDS}maxAllocFraction="),
    Flag("spark", _CONF, Kind.START, sizes.fraction_of_free_at_start, prefix=f"{_RAPIDS}allocFraction="),
    Flag("spark", _CONF, Kind.RESERVE, sizes.spark, prefix=f"{_RAPIDS}reserve="),
)

SHARE_WORDS: Mapping[str, tuple[Kind, sizes.Parser]] = {
    **{
        name.lstrip("-").replace("-", "_"): (flag.kind, flag.parse)
        for flag in FLAGS
        for name in flag.names
        if name.startswith("--") and not flag.prefix
    },
    **dict.fromkeys(
        ("per_process_memory_fraction", "gpu_memory_fraction", "gpu_mem_fraction", "memory_fraction", "mem_fraction"),
        (Kind.CAP, sizes.fraction_or_off),
    ),
    "gpu_mem_limit": (Kind.CAP, sizes.plain_bytes),
}
"""Words of a share in options, overrides and `key=value` lists of any program, with `_`."""

_SHORTEST = 5
"""Characters of a beginning of a flag, at least: `--mem`."""
_MOST_WORDS = 8
_LONGEST = 4096
"""Characters of an argument that are searched, at most."""
_WORDS = "|".join(sorted((word.replace("_", "[_-]") for word in SHARE_WORDS), key=len, reverse=True))
_GIVEN = re.compile(
    rf"""(?<![\w.+-])[\w.+-]*?(?<![A-Za-z0-9])(?<!cpu[_-])(?<!host[_-])({_WORDS})
    (?:(?:["']?\s*[=:]\s*["']?|\s+(?=[\d.]))([^\s,;"'{{}}()\[\]]+)|["']?$)""",
    re.VERBOSE | re.ASCII,
)

_CONFIG = "--config"
_CONFIGURED = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}
"""Programs that read options from a YAML file, and the main memory flag of each; the command line overrides the file.
Sources: vllm/utils/argparse_utils.py, FlexibleArgumentParser; sglang/srt/server_args_config_parser.py."""


def config_file(argv: tuple[str, ...]) -> str | None:
    """Return the path of the configuration file that a command line names; None where it names none. Never raises.

    Both programs accept it only as two words, and only once.
    """
    found = find_program(argv)
    if found is None or found.program.framework not in _CONFIGURED or found.arguments.count(_CONFIG) != 1:
        return None
    place = found.arguments.index(_CONFIG) + 1
    return found.arguments[place] if place < len(found.arguments) else None


def candidates(
    argv: tuple[str, ...], where: str = "command line", config: FrameworkConfig | None = None
) -> list[Candidate]:
    """Return the candidates of a command line, in its order; none where it starts no known program. Never raises.

    A value that its program would refuse gives a `void` candidate. `config` is the file that the command line names;
    its options count where the command line does not give them.
    """
    started = find_program(argv)
    if started is None:
        return list(_possible(programs.parse_command(tuple(argv)).arguments, where))
    table = [(name, flag) for flag in FLAGS if flag.program == started.program.framework for name in flag.names]
    given: dict[Flag, list[Candidate]] = {}
    for flag, name, value, text in _find_flags(started.arguments, table):
        given.pop(flag, None)  # so that the order stays that of the command line
        given[flag] = _read(flag, name, value, text, where)
    if config is not None:
        given = {**dict(_read_config(config, dict(table), given)), **given}
    why = f"{_NO_POOL} switches the pool off" if any(_NO_POOL in word for word in started.arguments) else ""
    if any(_VLLM_CACHE in flag.names and several and not several[0].void for flag, several in given.items()):
        why = f"vLLM ignores it if {_VLLM_CACHE} is given"
    return [
        void(one, why) if why and (flag.margin is Margin.BUDGET or flag.program == "spark") else one
        for flag, several in given.items()
        for one in several
    ]


def _possible(arguments: Sequence[str], where: str) -> Iterable[Candidate]:
    """Return a candidate for each word of a share with a value, of equal words the last: its use is not known."""
    by_word: dict[str, Candidate] = {}
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        for match in _GIVEN.finditer(argument[:_LONGEST]):
            word, value, text = match[1].replace("-", "_"), match[2], match[0]
            if value is None:
                if not argument.startswith("-") or not following:
                    continue
                value, text = following, f"{argument} {following}"
            kind, parse = SHARE_WORDS[word]
            candidate = Candidate(
                channel=word,
                where=where,
                text=format_excerpt(text),
                kind=kind,
                confidence=Confidence.POSSIBLE,
                condition="if its code uses it this way",
            )
            for one in parse_value(candidate, value, parse)[:1]:
                by_word.pop(word, None)
                by_word[word] = replace(one, void="", dynamic=bool(one.void))
    return [*by_word.values()][:_MOST_WORDS]


def _read_config(
    config: FrameworkConfig, table: Mapping[str, Flag], given: dict[Flag, list[Candidate]]
) -> Iterator[tuple[Flag, list[Candidate]]]:
    """Return the candidates of a server's file; for an unread file one without a value, unless its flag is `given`.

    What is given by vLLM's flag is then possible: the file may have the option that replaces it.
    """
    try:
        if isinstance(config.text, Unread):
            raise ValueError(f"it {config.text.of_file}")
        for key, (line, value) in parse_flat_yaml(config.text).items():
            name = f"--{key.replace('_', '-')}"
            if name not in table:
                continue
            if not value or value[0] in "[{":
                raise ValueError(f"line {line} is not a plain value")
            made = _read(table[name], name, value, f"{key}: {value}", config.path)
            sure = file_confidence(table[name].confidence, config)
            yield table[name], [replace(one, line=line, confidence=sure) for one in made]
    except ValueError as error:
        name = next(name for name in _CONFIGURED.values() if name in table)
        if _VLLM_CACHE in table and table[name] in given:
            doubt = {"confidence": Confidence.POSSIBLE, "condition": f"unless {config.path} has {_VLLM_CACHE[2:]}"}
            given[table[name]] = [replace(one, **doubt) for one in given[table[name]]]
        elif table[name] not in given:
            words = f"{config.path} was not read: {error}"
            named = _candidate(table[name], _CONFIG, f"{_CONFIG} {config.path}", "command line")
            yield table[name], [replace(named, dynamic=True, unread=clean(words, 2 * SHOWN))]


def _find_flags(
    arguments: Sequence[str], table: Collection[tuple[str, Flag]]
) -> Iterator[tuple[Flag, str, str | None, str]]:
    """Find flags among arguments; return for each its name, its value (None where it is missing) and its text.

    `_` counts as `-`, because users write both. The name of a beginning is in full, unless it may mean another flag.
    """
    for place, argument in enumerate(arguments):
        if argument == "--":
            return
        written, equals, value = argument.partition("=")
        if argument.startswith("-Dspark."):
            written, equals, value = "-D", "=", argument[2:]
        short = written.replace("_", "-")
        text = argument
        if not equals and place + 1 < len(arguments):
            value = arguments[place + 1]
            text = f"{argument} {value}"
        exact = any(short == name for name, _ in table)
        for name, flag in table:
            begins = bool(flag.shortest) and len(short) >= _SHORTEST and name.startswith(short)
            if not (short == name if exact else begins):
                continue
            if not exact and not short.startswith(flag.shortest):
                name = short
            if not equals and place + 1 >= len(arguments):
                yield flag, name, None, argument
            elif value.startswith(flag.prefix):
                yield flag, name, value.removeprefix(flag.prefix), text


def _candidate(flag: Flag, channel: str, text: str, where: str) -> Candidate:
    return Candidate(
        channel=channel,
        where=where,
        text=format_excerpt(text),
        framework=flag.framework or flag.program,
        kind=flag.kind,
        margin=flag.margin,
        confidence=flag.confidence,
    )


def _read(flag: Flag, name: str, value: str | None, text: str, where: str) -> list[Candidate]:
    candidate = _candidate(flag, name, text, where)
    if name not in flag.names:
        words = f"if {name} means {flag.names[0]}"
        candidate = replace(candidate, confidence=Confidence.POSSIBLE, condition=words)
    return [void(candidate, "it has no value")] if value is None else parse_value(candidate, value, flag.parse)
