"""What the sampler makes of declarations: when it asks, what becomes of a reader that fails, and the whole of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection

import msgspec

from gpuwatch.base import procfs
from gpuwatch.declared.facts import MigFacts, Share
from gpuwatch.inspector.client import InspectorClient
from gpuwatch.inspector.protocol import Answer
from gpuwatch.model.snapshot import (
    Declared,
    Gpu,
    Health,
    Instance,
    Knowledge,
    Memory,
    Presence,
    Process,
    ProcessContext,
    Reason,
    Snapshot,
)
from gpuwatch.sampler.declarations import AGAIN, DeclarationCache
from tests.declared.tables import Case, cases
from tests.driver import GIB, Driver, Proc
from tests.driver import Gpu as Fake
from tests.support.process import sharing, sleeping
from tests.support.sampler import Running, once, running
from tests.support.waiting import PATIENCE, wait_for

ADA = Process(pid=7, start=1, uid=1000, user="ada", name="python", command="python train.py", ppid=3, cpu=97.0)
BEN = Process(pid=8, start=2, uid=1001, user="ben", name="python", command="python other.py", ppid=3, cpu=3.0)
GPU = Gpu(index=0, uuid="GPU-a", name="H100", bus_id="0:1:0.0", memory=Memory(total=80 * GIB), mig=False)
OTHER = Gpu(index=1, uuid="GPU-b", name="H100", bus_id="0:2:0.0", memory=Memory(total=80 * GIB), mig=False)


class Scripted(InspectorClient):
    """A client that notes what it is asked and answers what a test tells it to."""

    def __init__(self) -> None:
        super().__init__(command=("false",))
        self.asked: list[int] = []
        self.kept: set[tuple[int, int]] = set()
        self.answers: list[Answer] = []

    def ask(self, pid: int, start: int, user: str) -> None:
        self.asked.append(pid)

    def retain(self, wanted: Collection[tuple[int, int]]) -> None:
        self.kept = set(wanted)

    def poll(self) -> list[Answer]:
        answers, self.answers = self.answers, []
        return answers


class Bench:
    """Declarations with a clock of their own."""

    def __init__(self, *known: Process) -> None:
        """Begin with processes that were asked and have answered."""
        self.now = 0.0
        self.client = Scripted()
        self.declarations = DeclarationCache(self.client, clock=lambda: self.now, viewer=1000)
        if known:
            self.see(*known)
            self.answer(*known)
            self.see(*known)
            self.asked()

    def see(self, *processes: Process, gpus: tuple[Gpu, ...] = (GPU,), count: int = 1) -> list[Declared | None]:
        """Annotate them; return what is known of each."""
        return [process.declared for process in self.declarations.annotate(processes, gpus, count)]

    def answer(self, *processes: Process, text: str = "read") -> None:
        """Let answers come."""
        for one in processes:
            self.client.answers.append(Answer(pid=one.pid, start=one.start, declared=Declared(words=text)))

    def asked(self) -> list[int]:
        """Return what was asked since this was last called."""
        asked, self.client.asked = self.client.asked, []
        return asked


READ = Declared(words="read")
PENDING = Declared(knowledge=Knowledge.PENDING)


def replaced(process: Process, changes: Case) -> Process:
    """Return a process with the fields of a case but its name."""
    return msgspec.convert({**msgspec.to_builtins(process), **changes}, Process)


@cases("sampler/asks")
def test_when_a_process_is_asked(case: Case) -> None:
    """`see` shows processes to it, each as one of two with changes; `shown` is what is known, `asked` who was asked."""
    bench, people = Bench(), {"ada": ADA, "ben": BEN}
    for step in case["steps"]:
        bench.now = step.get("now", bench.now)
        bench.answer(*(people[name] for name in step.get("answer", ())), text=step.get("text", "read"))
        if "see" in step:
            shown = [replaced(people[one["as"]], one) for one in step["see"]]
            known = [one and (one.words or "pending") for one in bench.see(*shown)]
            assert step.get("shown", known) == known
        if "asked" in step or "forget" in step:
            asked = bench.asked()
            assert step.get("asked", asked) == asked


def test_the_viewers_own_are_asked_again_every_five_minutes_or_every_minute_where_they_may_be_left() -> None:
    left = msgspec.structs.replace(ADA, pid=9, start=3, adopted=True)
    bench = Bench(ADA, BEN)
    asked = []
    for second in range(int(AGAIN), 400):
        bench.now = float(second)
        bench.see(ADA, BEN, left)
        bench.answer(ADA, BEN, left)
        if pids := bench.asked():
            asked.append((second, pids))
    each = [(60, [9]), (120, [9]), (180, [9]), (240, [9]), (300, [7, 9]), (360, [9])]
    assert asked == [(20, [7, 8, 9]), (40, [9]), *each]


def test_of_a_title_that_changes_at_every_step_only_the_first_change_is_followed_at_once() -> None:
    bench = Bench(ADA)
    for step, asked in ((1, [7]), (2, []), (3, []), (400, [7])):
        bench.now = 0.1 * step
        bench.see(msgspec.structs.replace(ADA, name=f"step {step}"))
        bench.answer(ADA)
        assert bench.asked() == asked


def test_what_was_read_while_it_ran_stays_when_its_first_thread_has_ended() -> None:
    """A zombie, one that is stuck in the kernel while it ends, and one of which other threads go on."""
    bench = Bench()
    bench.see(ADA)
    around = ProcessContext(unit="train.service")
    bench.client.answers.append(Answer(pid=7, start=1, declared=Declared(words="read"), context=around))
    bench.see(ADA)
    dead = msgspec.structs.replace(ADA, state="zombie", ppid=1)
    bench.see(dead)
    assert bench.asked() == [7, 7]
    unread = Declared(knowledge=Knowledge.UNREADABLE, words="it has ended")
    bench.client.answers.append(Answer(pid=7, start=1, declared=unread, context=ProcessContext(), ended=True))
    (shown,) = bench.declarations.annotate([dead], (GPU,), 1)
    assert (shown.declared, shown.context) == (Declared(words="read"), around)


def test_what_the_kernel_does_not_show_is_unreadable() -> None:
    bench = Bench()
    for presence in set(Presence) - {Presence.SEEN}:
        (declared,) = bench.see(Process(pid=7, presence=presence))
        assert declared is not None
        assert (declared.knowledge, bool(declared.words)) == (Knowledge.UNREADABLE, True)
    assert bench.asked() == []


def test_nothing_is_asked_before_each_gpu_was_looked_up() -> None:
    """Which one an ordinal means depends on all of them; one that cannot be looked up is not waited for.

    With `--gpu 1`, ordinal 1 is still the second.
    """
    bench = Bench()
    assert bench.see(ADA, gpus=(GPU, Gpu(index=1)), count=2) == [PENDING]
    assert bench.asked() == []
    bench.see(ADA, gpus=(GPU, Gpu(index=1, health=Health.LOST)), count=2)
    assert bench.asked() == [7]
    assert [gpu.uuid for gpu in bench.client.gpus] == ["GPU-a", "index-1"]
    bench.see(ADA, gpus=(OTHER,), count=3)
    facts = [(gpu.index, gpu.uuid, gpu.total) for gpu in bench.client.gpus]
    assert facts == [(0, "index-0", None), (1, "GPU-b", 80 * GIB), (2, "index-2", None)]


def test_all_are_asked_again_when_the_gpus_change() -> None:
    """A limit in bytes follows from their memory; the same GPUs are the very same facts."""
    bench = Bench()
    for _ in range(2):
        bench.see(ADA, BEN, gpus=(GPU, OTHER), count=2)
        bench.answer(ADA, BEN)
    before = bench.client.gpus
    bench.see(ADA, BEN, gpus=(GPU, OTHER), count=2)
    assert bench.client.gpus is before
    assert bench.asked() == [7, 8]
    bench.see(ADA, BEN, gpus=(GPU, msgspec.structs.replace(OTHER, memory=Memory(total=40 * GIB))), count=2)
    assert [gpu.total for gpu in bench.client.gpus] == [80 * GIB, 40 * GIB]
    assert bench.asked() == [7, 8]


def test_a_gpu_in_trouble_is_what_it_was() -> None:
    bench = Bench()
    mig = Instance(uuid="MIG-1", name="1g", gpu_instance=7, compute_instance=0, memory=Memory(total=10 * GIB))
    cut = msgspec.structs.replace(GPU, mig=True, instances=(mig,))
    bench.see(ADA, gpus=(cut,))
    facts = bench.client.gpus
    assert facts[0].mig
    assert facts[0].slices == (MigFacts(uuid="MIG-1", gpu_instance=7, total=10 * GIB),)
    bench.answer(ADA)
    lost = Gpu(index=0, uuid="GPU-a", health=Health.LOST, mig=Reason.ERROR)
    unread = msgspec.structs.replace(mig, memory=Memory())
    for gpu in (lost, msgspec.structs.replace(cut, memory=Memory(), instances=(unread,))):
        bench.see(ADA, gpus=(gpu,))
        assert bench.client.gpus is facts
    assert bench.asked() == [7]


def test_settling_waits_for_the_answers_and_no_longer(inspector: Callable[..., InspectorClient]) -> None:
    declarations = DeclarationCache(inspector("time.sleep(0.05)"))
    declarations.annotate([ADA, BEN], [GPU], 1)
    declarations.wait(PATIENCE)
    assert declarations.news
    assert [process.declared for process in declarations.annotate([ADA, BEN], [GPU], 1)] == [READ, READ]
    slow = DeclarationCache(inspector("time.sleep(600)"))
    slow.annotate([ADA], [GPU], 1)
    slow.wait(0.05)
    assert [process.declared for process in slow.annotate([ADA], [GPU], 1)] == [PENDING]


def held(driver: Driver, *pids: int) -> Driver:
    """Let the driver list these processes on the second of two GPUs of 80 GiB."""
    gpus = [Fake(index, memory_total=80 * GIB, memory_used=30 * GIB) for index in range(2)]
    return driver.put(gpus=gpus, procs=[Proc(1, pid, memory=2 * GIB) for pid in pids])


def declared(snapshot: Snapshot, pid: int) -> Declared:
    """Return what is known of a process."""
    (found,) = [process.declared for process in snapshot.processes if process.pid == pid]
    assert found is not None
    return found


JAX = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3", "CUDA_VISIBLE_DEVICES": "1"}


def test_a_single_snapshot_has_what_was_declared_and_agreed(driver: Driver) -> None:
    """JAX's variable, read from a real process: 0.3 of the GPU that it sees; and a share of gpuwatch.toml."""
    share = Share(memory=5 * GIB, gpus=(1,), where="gpuwatch.toml", line=3)
    with sharing("-c", "import jax", environ=JAX) as process:
        snapshot, code = once(held(driver, process.pid).env(), shares=[msgspec.to_builtins(share)])
    found = declared(snapshot, process.pid)
    assert (code, found.knowledge) == (0, Knowledge.READ)
    uuid = snapshot.gpus[1].uuid
    sizes = {found.declarations[one.declaration].channel: (one.gpu, one.bytes) for one in found.limits}
    assert sizes.pop("XLA_PYTHON_CLIENT_MEM_FRACTION") == (uuid, round(0.3 * (80 * GIB - 551 * (1 << 20))))
    assert [*sizes.values()] == [(uuid, 5 * GIB)]


def test_a_stream_has_it_as_soon_as_it_is_known(driver: Driver) -> None:
    with (
        sharing("-c", "import jax", environ=JAX) as process,
        running(held(driver, process.pid).env(), interval=3600) as sampler,
    ):
        first = sampler.next()
        assert declared(first, process.pid).knowledge in (Knowledge.PENDING, Knowledge.READ)
        last = sampler.until(lambda snapshot: declared(snapshot, process.pid).knowledge is Knowledge.READ)
    assert declared(last, process.pid).limits
    assert last.nvml_calls == first.nvml_calls


def test_only_the_first_are_shown_before_the_next_sample_where_that_is_near(driver: Driver) -> None:
    seen: list[float] = []
    with (
        sleeping(b"A=1") as one,
        sleeping(b"A=1") as two,
        sleeping(b"A=1") as three,
        running(held(driver).env(), interval=1.0) as sampler,
    ):
        sampler.next()
        for pids in (one,), (one, two), (one, two, three):
            held(driver, *pids)
            knows = Knowledge.PENDING
            while knows is Knowledge.PENDING:
                snapshot = sampler.next()
                seen.append(snapshot.gpus[0].sampled)
                of = [process.declared for process in snapshot.processes if process.pid == pids[-1]]
                knows = of[0].knowledge if of and of[0] else Knowledge.PENDING
    assert len(seen) - len({*seen}) <= 1


def test_it_can_be_left_out(driver: Driver) -> None:
    with sleeping(b"A=1") as pid, running(held(driver, pid).env(), declared=False) as sampler:
        (process,) = sampler.next().processes
        assert procfs.find_children(sampler.process.pid) == []
    assert process.declared is None


def stopped_reader(sampler: Running) -> int:
    """Let the sampler's reader hang, and give its PID."""
    sampler.next()
    (reader,) = procfs.find_children(sampler.process.pid)
    wait_for(lambda: procfs.read_stat(reader).state == "S")
    os.kill(reader, signal.SIGSTOP)
    return reader


def test_a_reader_that_hangs_holds_up_nothing(driver: Driver) -> None:
    with sleeping(b"A=1") as pid, running(held(driver).env()) as sampler:
        reader = stopped_reader(sampler)
        held(driver, pid)
        asked = sampler.until(lambda it: bool(it.processes))
        stuck = sampler.until(lambda it: bool(it.processes) and declared(it, pid).knowledge is Knowledge.UNREADABLE)
        assert declared(stuck, pid).words == "could not be read within 2 s"
        assert stuck.sequence > asked.sequence + 1  # samples went on meanwhile
        wait_for(lambda: reader not in procfs.find_children(sampler.process.pid))


def test_nothing_is_left_behind_when_the_sampler_is_killed(driver: Driver) -> None:
    with running(held(driver).env()) as sampler:
        reader = stopped_reader(sampler)
        sampler.process.kill()
        wait_for(lambda: procfs.has_ended(reader))
