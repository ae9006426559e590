"""What the processes of the demo machine run in and belong to, and those that hold device files and are not listed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from gpuwatch.model import Container, Job, Notebook, Pane, Process, Surroundings, Unlisted
from gpuwatch.sources import demo_cast as cast
from gpuwatch.units import MIB


def surroundings(actor: cast.Actor, start: int) -> Surroundings:
    """Give what an actor runs in; `start` is its start time in ticks. The same at every moment."""
    place = _PLACES.get(actor.pid, _TMUX_HAL if actor.user == "hal" else Surroundings())
    return replace(place, job=_job(actor, start))


def _job(actor: cast.Actor, start: int) -> Job:
    if actor.pid in cast.RANKS:
        rank = list(cast.RANKS).index(actor.pid)
        return Job(
            key=f"15219:{start}",
            name="train.py",
            launcher="mpirun",
            head=15219,
            head_start=start,
            rank=rank,
            local_rank=rank,
            world=len(cast.RANKS),
        )
    if actor.pid in cast.GENV_PIDS:
        rank = actor.pid - cast.GENV_PIDS.start
        return Job(key="ray:01000000", name="actor.py", launcher="ray", rank=rank, world=len(cast.GENV_PIDS))
    if actor.pid in cast.EVALUATOR_PIDS:
        # Started nine seconds after the one that they work for.
        head = start - 900
        return Job(
            key=f"{cast.EVALUATION_PID}:{head}",
            name="evaluate",
            head=cast.EVALUATION_PID,
            head_start=head,
            worker_of=cast.EVALUATION_PID,
        )
    if actor.pid in cast.EMBEDDER_PIDS:
        return Job(key=f"13990:{start}", name="serve_embeddings.py", head=13990, head_start=start)
    if actor.pid == cast.VLLM_PID:
        return Job(key=f"12890:{start}", name="vllm serve", head=12890, head_start=start)
    if actor.argv[1:2] == ("sweep.py",):
        return Job(key="23001:900", name="sweep.py", head=23001, head_start=900)
    return Job(key=f"{actor.pid}:{start}", name=_name(actor), head=actor.pid, head_start=start)


def _name(actor: cast.Actor) -> str:
    words = actor.argv
    if "ipykernel_launcher" in words:
        return "ipykernel"
    if words[1:2] == ("-c",):
        return "python -c"
    return words[2] if words[1:2] == ("-m",) else words[1] if words[0].endswith("python") else words[0]


def _notebook(pid: int, path: str, server: int = 3350) -> Surroundings:
    return Surroundings(notebook=Notebook(kernel=f"{pid * 2654435761 % 2**32:08x}", path=path, server=server))


def _tmux(session: int, pane: int, ssh: str = "") -> Surroundings:
    return Surroundings(pane=Pane(program="tmux", session=f"${session}", window=f"%{pane}", alive=True), ssh=ssh)


_TMUX_HAL: Final = _tmux(4, 31, "10.20.0.31")

_PLACES: Final[Mapping[int, Surroundings]] = {
    **dict.fromkeys(cast.RANKS, _tmux(1, 3, "10.20.0.14")),
    **dict.fromkeys((cast.EVALUATION_PID, *cast.EVALUATOR_PIDS), _tmux(0, 12)),
    **dict.fromkeys(
        cast.GENV_PIDS, Surroundings(pane=Pane(program="screen", session="actors", window="0", alive=True))
    ),
    **{
        pid: Surroundings(unit="embeddings.service", user_unit=True, server=f"listens on port {8010 + place}")
        for place, pid in enumerate(cast.EMBEDDER_PIDS)
    },
    cast.SECRET_PID: Surroundings(ssh="10.20.0.17"),
    cast.DISTILL_PID: _tmux(2, 7),
    cast.VLLM_PID: Surroundings(
        container=Container(runtime="docker", id="3f9a1c0b77d2", name="vllm-llama"), server="vLLM"
    ),
    cast.TRITON_PID: Surroundings(
        container=Container(runtime="containerd", id="8c41e6d90a5b"), pod="serving/triton-7d9f", server="Triton"
    ),
    cast.GROWING_PID: _notebook(cast.GROWING_PID, "caching/growth.ipynb"),
    cast.IDLE_PID: _notebook(cast.IDLE_PID, "explore.ipynb"),
    17410: _notebook(17410, "probe.ipynb"),
    cast.MISSPELT_PID: _notebook(cast.MISSPELT_PID, "Untitled3.ipynb"),
    cast.START_PID: _notebook(cast.START_PID, "ablation.ipynb"),
    cast.RUN_PID: _tmux(3, 11, "10.20.0.22"),
    cast.STRAY_PID: Surroundings(ssh="10.20.0.22"),
}


def unlisted(
    starts: Mapping[int, int], booted: float, watched: frozenset[str], ended: Collection[int] = ()
) -> tuple[Unlisted, ...]:
    """Give who has device files open and is not listed by NVML.

    `starts` are the start times in ticks, by PID, of those who are listed, `booted` is when ticks began, in seconds
    since the epoch, `watched` are the keys of the GPUs that are watched, `ended` are PIDs of those who have ended.
    """
    run = starts.get(cast.RUN_PID)
    orphan = cast.ORPHAN_RUN_START
    found = [_worker(cast.ORPHAN_PID, 0, orphan, orphan + 350, 2, booted)]
    if run is not None:
        found += [_worker(pid, cast.RUN_PID, run, run + 400, 4, booted) for pid in cast.RUN_WORKER_PIDS]
    return tuple(one for one in found if watched.issuperset(one.gpus) and one.process.pid not in ended)


def _worker(pid: int, parent: int, run: int, start: int, gpu: int, booted: float) -> Unlisted:
    """Give a data worker; without a parent its run has ended. `run` is the start of the run's first process."""
    orphan = not parent
    head = parent or cast.ORPHAN_RUN_PID
    process = Process(
        pid=pid,
        start=start,
        uid=cast.VIEWER_UID,
        user=cast.VIEWER,
        name="pt_data_worker",
        command="python train_mine.py --workers 4",
        state="sleeping",
        ppid=parent or 1,
        parent="systemd" if orphan else "python",
        session=22790 if parent else 14877,
        led=not orphan,
        adopted=orphan,
        started=booted + start / 100,
        cpu=0.0,
        rss=620 * MIB,
        surroundings=Surroundings(
            pane=None if orphan else _PLACES[cast.RUN_PID].pane,
            ssh="10.20.0.22",
            job=Job(
                key=f"{head}:{run}",
                name="train_mine.py",
                head=0 if orphan else head,
                head_start=0 if orphan else run,
                worker_of=None if orphan else head,
                orphaned=orphan,
            ),
        ),
    )
    return Unlisted(process=process, gpus=(cast.uuid(gpu),), context=True)
