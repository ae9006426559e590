"""A driver library of our own, for the tests.

`build` compiles a small `libnvidia-ml.so.1` that the unmodified binding `pynvml` loads through
LD_LIBRARY_PATH. It answers from a state file which `Driver` writes, and which may be written again while a
program runs on it. Real processes, real handles, real hangs and real crashes, and no GPU.

The state file has a line for each thing, and each line is words with a space between them:

    system driver=580.95.05 nvml=13.580.95.05 cuda=13000
    gpu uuid=GPU-0 name=NVIDIA%20H100 memory_total=85520809984 ...     (NVML's index is the order of the lines)
    mig gpu=0 gi=7 ci=0 uuid=MIG-0 memory_total=...
    proc gpu=0 pid=4711 kind=C memory=1073741824 sm=87
    xid gpu=0 code=79 n=1                                              (what happened, counted)
    fault nvmlDeviceGetTemperature@3 ret=15 ok_after=2

A key is the name of a field of `Gpu`, `Mig` or `Proc`. A key that is absent is "not supported"; a value `!15` is
the return code 15; text is percent-encoded, so a name may hold any byte.
"""

import os
import re
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any, Self
from urllib.parse import quote_from_bytes

MIB = 1 << 20
GIB = 1 << 30
MAX_GPUS = 32  # as in nvml.h, like the layout of a record in the file of counters
HERE = Path(__file__).parent
RECORD = struct.Struct(f"=64sQ{MAX_GPUS}Q")


class Code(int):
    """An NVML return code in place of a figure: `Gpu(temperature=Code(15))`."""


Text = str | bytes | Code | None


@dataclass
class Mig:
    """A MIG device of a GPU."""

    gi: int
    ci: int = 0
    uuid: Text = None
    name: Text = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    memory_total: int | None = 10 * GIB
    memory_used: int | None = 1 * GIB
    memory_reserved: int | None = 16 * MIB
    bar1_total: int | None = 16 * GIB
    bar1_used: int | None = 1 * MIB
    multiprocessors: int | None = 16
    gpu_slices: int | None = 1
    compute_slices: int | None = 1


@dataclass
class Gpu:
    """A GPU. `index` names it in `Proc.gpu` and gives it a UUID and an address; NVML's index is its place.

    A figure that is None is not supported, and one that is a `Code` fails with that code.
    """

    index: int = 0
    uuid: Text = None
    name: Text = "NVIDIA H100 80GB HBM3"
    bus: Text = None
    minor: int | None = None
    serial: Text = "1650123456789"
    vbios: Text = "96.00.89.00.01"
    brand: int | None = 14
    architecture: int | None = 9
    cuda_major: int | None = 9
    cuda_minor: int | None = 0
    cores: int | None = 16896
    pci_device: int | None = 0x233010DE
    pci_subsystem: int | None = 0x16C110DE
    memory_total: int | None = 81559 * MIB
    memory_used: int | None = 0  # without the reserved part, as nvmlDeviceGetMemoryInfo_v2 has it
    memory_reserved: int | None = 551 * MIB
    memory_free: int | None = None  # else the rest of it
    bar1_total: int | None = 128 * GIB
    bar1_used: int | None = 4 * MIB
    util_gpu: int | None = 0
    util_memory: int | None = 0
    util_encoder: int | None = 0
    util_decoder: int | None = 0
    util_jpeg: int | None = 0
    util_ofa: int | None = 0
    util_period: int | None = 166_000
    temperature: int | None = 31
    temp_memory: int | None = 40
    temp_slowdown: int | None = 89
    temp_shutdown: int | None = 92
    temp_gpu_max: int | None = 87
    temp_memory_max: int | None = 95
    fan: int | None = None
    fans: int | None = 0
    power: int | None = 71_000  # mW, as all of them
    power_limit: int | None = 700_000
    power_limit_set: int | None = 700_000
    power_limit_default: int | None = 700_000
    power_limit_min: int | None = 200_000
    power_limit_max: int | None = 700_000
    energy: int | None = 123_456_789
    clock_graphics: int | None = 345
    clock_sm: int | None = 345
    clock_memory: int | None = 2619
    clock_video: int | None = 765
    clock_graphics_max: int | None = 1980
    clock_sm_max: int | None = 1980
    clock_memory_max: int | None = 2619
    clock_video_max: int | None = 1545
    clock_reasons: int | None = 1  # idle
    clock_reasons_supported: int | None = 0x1FF
    pstate: int | None = 0
    pcie_tx: int | None = 0
    pcie_rx: int | None = 0
    pcie_gen: int | None = 5
    pcie_width: int | None = 16
    pcie_gen_max: int | None = 5
    pcie_width_max: int | None = 16
    nvlinks: int | None = None
    nvlinks_active: int | None = 0
    ecc_mode: int | None = 1
    ecc_pending: int | None = 1
    ecc_corrected_volatile: int | None = 0
    ecc_corrected_aggregate: int | None = 0
    ecc_uncorrected_volatile: int | None = 0
    ecc_uncorrected_aggregate: int | None = 0
    remapped_corrected: int | None = 0
    remapped_uncorrected: int | None = 0
    remap_pending: int | None = 0
    remap_failed: int | None = 0
    event_types: int | None = 0x9F  # 8: XIDs
    persistence: int | None = 1
    compute_mode: int | None = 0
    display_active: int | None = 0
    display_mode: int | None = 1
    mig_mode: int | None = 0
    mig_pending: int | None = 0
    mig_max: int | None = 7
    migs: list[Mig] = field(default_factory=list)
    values: dict[int, int] = field(default_factory=dict)  # of nvmlDeviceGetFieldValues, by the id of the field

    def __post_init__(self) -> None:
        """What else names a GPU follows from its index."""
        if self.uuid is None:
            self.uuid = f"GPU-{self.index:08x}-5c1e-4a57-9f00-{0xA100 + self.index:012x}"
        if self.bus is None:
            self.bus = f"00000000:{(0x1B + 0x10 * self.index) & 0xFF:02X}:00.0"
        if self.minor is None:
            self.minor = self.index


@dataclass
class Proc:
    """A process on a GPU. A process with an `sm` figure has a sample of utilization, and a new one 6 times a second.

    `kind` has a letter for every list that the process is on: C compute, G graphics, M MPS; it may be empty.
    `ts` (µs since the epoch) and `age` (µs before now; after, if negative) fix the time of its sample.
    """

    gpu: int
    pid: int
    kind: str = "C"
    memory: int | None = 1 * GIB
    gi: int | None = None
    ci: int | None = None
    sm: int | None = None
    mem: int | None = None
    enc: int | None = None
    dec: int | None = None
    ts: int | None = None
    age: int | None = None


def _line(kind: str, values: Mapping[str, object]) -> str:
    """A line of the state file. What is neither text nor a number has no place in it."""
    words = [kind]
    for key, value in values.items():
        match value:
            case str():
                words.append(f"{key}={quote_from_bytes(value.encode(), safe=':')}")
            case bytes():
                words.append(f"{key}={quote_from_bytes(value, safe=':')}")
            case Code():
                words.append(f"{key}=!{int(value)}")
            case int():
                words.append(f"{key}={int(value)}")
    return " ".join(words)


FAULT = re.compile(r"(\*|(?P<symbol>nvml\w+))(@\d+)?( (hang|segv|grow|empty|(sleep|ret|ok_after)=\d+))+", re.ASCII)


@cache
def symbols() -> frozenset[str]:
    """The NVML functions that the library has."""
    sources = "".join(source.read_text("utf-8") for source in HERE.glob("*.c"))
    return frozenset(re.findall(r"(?:^[A-Z_]+\(|^API .*?)(nvml\w+)", sources, re.MULTILINE))


def _checked(fault: str) -> str:
    match = FAULT.fullmatch(fault)
    if match is None or (match["symbol"] and match["symbol"] not in symbols()):
        raise ValueError(f"not a fault that the driver library knows: {fault!r}")
    return f"fault {fault}"


@dataclass
class Driver:
    """A driver in a folder of its own: its state, and what was called. Change the state, then `write` it.

    A fault is `<symbol>[@<index>]`, with `*` for every symbol, and then what befalls the call: `hang`, `segv`,
    `sleep=<ms>`, `ret=<code>`; for a list `grow` (it never fits the buffer) or `empty` (success, no entries).
    `ok_after=<n>` ends it with the n-th call, as the process counts them.
    """

    folder: Path
    library: Path
    gpus: list[Gpu] = field(default_factory=lambda: [Gpu()])
    procs: list[Proc] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    xids: list[tuple[int, int]] = field(default_factory=list)
    """What has happened: (index of the GPU, code). Only ever append: whoever listens is told each once."""
    driver: str | Code | None = "580.95.05"
    nvml: str | Code | None = "13.580.95.05"
    cuda: int | None = 13000
    _stamp: int = 0

    @property
    def _state(self) -> Path:
        return self.folder / "driver.state"

    @property
    def _calls(self) -> Path:
        return self.folder / "driver.calls"

    def text(self) -> str:
        """The state file."""
        if len(self.gpus) > MAX_GPUS:
            raise ValueError(f"the driver library has room for {MAX_GPUS} GPUs")
        place = {gpu.index: n for n, gpu in enumerate(self.gpus)}
        lines = [_line("system", {"driver": self.driver, "nvml": self.nvml, "cuda": self.cuda})]
        for n, gpu in enumerate(self.gpus):
            lines.append(_line("gpu", vars(gpu) | {f"field_{key}": value for key, value in gpu.values.items()}))
            for mig in gpu.migs:
                uuid = mig.uuid or f"MIG-{gpu.index:08x}-{mig.gi:04x}-{mig.ci:04x}-9f00-00000000a100"
                lines.append(_line("mig", vars(mig) | {"gpu": n, "uuid": uuid}))
        lines += [_line("proc", vars(proc) | {"gpu": place[proc.gpu]}) for proc in self.procs if proc.gpu in place]
        happened = enumerate(self.xids, 1)
        lines += [
            _line("xid", {"gpu": place[gpu], "code": code, "n": n}) for n, (gpu, code) in happened if gpu in place
        ]
        lines += [_checked(fault) for fault in self.faults]
        return "".join(f"{line}\n" for line in lines)

    def write(self) -> Self:
        """Puts the state in place, at once. A program that runs on it sees it with its next call."""
        fresh = self._state.with_suffix(".new")
        fresh.write_text(self.text(), "ascii")
        self._stamp = max(self._stamp + 1, time.time_ns())  # the library looks at the time to see that it is new
        os.utime(fresh, ns=(self._stamp, self._stamp))
        fresh.replace(self._state)
        return self

    def put(self, **state: Any) -> Self:
        """Change some of the state, as `put(faults=[], procs=[])`, and write it."""
        for name, value in state.items():
            if not hasattr(self, name):
                raise AttributeError(name)
            setattr(self, name, value)
        return self.write()

    def lab(self, n_gpus: int = 8, n_procs: int = 43, pids: Sequence[int] | None = None) -> Self:
        """Fills the driver as `lab` does."""
        self.gpus, self.procs = lab(n_gpus, n_procs, pids)
        return self

    def env(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment of a program that is to run on this driver."""
        path = [str(self.library.parent), base.get("LD_LIBRARY_PATH", "")]
        return {
            **base,
            "LD_LIBRARY_PATH": ":".join(filter(None, path)),
            "GPUWATCH_TEST_DRIVER": str(self._state),
            "GPUWATCH_TEST_CALLS": str(self._calls),
        }

    def calls(self, gpu: int | None = None) -> Counter[str]:
        """How often each function was called, by all programs together; with `gpu`, for the GPU at that place."""
        counted: Counter[str] = Counter()
        if self._calls.exists():
            data = self._calls.read_bytes()
            for name, total, *by_gpu in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
                count = total if gpu is None else by_gpu[gpu]
                if count:
                    counted[name.rstrip(b"\0").decode("ascii")] = count
        return counted


def lab(n_gpus: int = 8, n_procs: int = 43, pids: Sequence[int] | None = None) -> tuple[list[Gpu], list[Proc]]:
    """A machine of a research group: some GPUs full, one crowded, one held but idle, one free.

    Always the same one. Where there are fewer `pids` than processes, a process is on several GPUs.
    """
    loads = (97, 88, 100, 0, 54, 12, 73)  # of GPUs 0..6 of every 8; the last one is free
    fills = (92, 61, 97, 18, 74, 33, 83)  # and how much of the memory is taken, in percent
    deal = (0, 1, 2, 3, 4, 5, 6, 4, 2, 4)  # and who gets the next process
    pids = range(40_001, 40_001 + n_procs) if pids is None else pids
    gpus = [Gpu(n) for n in range(n_gpus)]
    turns = [gpu for start in range(0, n_gpus, 8) for n in deal for gpu in gpus[start + n : start + n + 1]]
    procs = [Proc(turns[n % len(turns)].index, pids[n % len(pids)]) for n in range(n_procs)]
    for gpu in gpus:
        mine = [proc for proc in procs if proc.gpu == gpu.index]
        if not mine:
            continue
        load, memory = loads[gpu.index % 8], fills[gpu.index % 8] * 800 * MIB
        parts = [1 + (3 * n + gpu.index) % 4 for n in range(len(mine))]
        for n, (proc, part) in enumerate(zip(mine, parts, strict=True)):
            proc.memory = memory * part // sum(parts) // MIB * MIB
            proc.sm = load // len(mine) + (load % len(mine) if n == 0 else 0)
            proc.mem = proc.sm // 2
        if gpu.index % 8 == 4:
            mine[-1].kind = "G"
        gpu.memory_used = sum(proc.memory or 0 for proc in mine) + 310 * MIB
        if load:
            gpu.util_gpu, gpu.util_memory = load, load // 2
            gpu.temperature, gpu.power = 35 + load * 2 // 5, (80 + load * 6) * 1000
            gpu.clock_sm = gpu.clock_graphics = 1755
            gpu.clock_reasons = 4 if load == 100 else 0  # 4: held back by the power cap
    return gpus, procs


def build(folder: Path, *, absent: Iterable[str] = ()) -> Path:
    """Compiles the library into a folder. What is `absent` a program cannot find in it, as in an older driver."""
    compiler = which("cc")
    if compiler is None:
        raise RuntimeError("there is no C compiler (cc) to build the tests' driver library with")
    absent = sorted(absent)
    if unknown := set(absent) - symbols():
        raise ValueError(f"the driver library has no {', '.join(sorted(unknown))}")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    exports = folder / "exports.map"
    hidden = "".join(f"{name}; " for name in absent)
    exports.write_text(f"{{ global: nvml*; local: {hidden}*; }};\n", "ascii")
    flags = ["-shared", "-fPIC", "-O0", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-pthread"]
    sources = [str(source) for source in sorted(HERE.glob("*.c"))]
    command = [compiler, *flags, f"-Wl,--version-script={exports}", *sources, "-o", str(library)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise RuntimeError(f"the tests' driver library does not compile:\n{built.stderr}")
    return library
