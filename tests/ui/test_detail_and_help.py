"""Help, the command palette and the detail of a process: its keys, hostile text, reasons, and what it runs in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gpuwatch.model.fields import GPU
from gpuwatch.model.snapshot import (
    Container,
    Declared,
    Gpu,
    Health,
    Knowledge,
    Notebook,
    Pane,
    Presence,
    Process,
    ProcessContext,
    Reason,
    Run,
)
from gpuwatch.ui.draw.gpu_pages import gpu_section
from gpuwatch.ui.draw.keys import KEYS, BoundKey, PaletteCommand, commands, replay_keys
from gpuwatch.ui.draw.process_page import place_section
from gpuwatch.ui.draw.sheet import REASONS, Section, field_fact
from gpuwatch.ui.screens.help import HelpScreen
from gpuwatch.ui.screens.pages import DetailScreen
from gpuwatch.ui.terminal_app import GpuwatchCommands
from tests.support import builders
from tests.support.builders import process
from tests.support.screen import HOSTILE, PID, Host, a_snapshot, fits, frame_of, key_of, press, text, until

Shown = tuple[Host, Pilot[None]]


@asynccontextmanager
async def shown(screen: HelpScreen | DetailScreen, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Shown]:
    """Show a screen in an app of its own."""
    app = Host()
    async with app.run_test(size=size) as pilot:
        await app.push_screen(screen)
        await pilot.pause()
        yield app, pilot


def facts_of(section: Section) -> dict[str, str]:
    return {one.label: one.value for one in section.facts}


async def test_help_opens_scrolls_and_closes() -> None:
    for size, key in (((80, 24), "q"), ((60, 10), "question_mark")):
        async with shown(HelpScreen(KEYS, frame_of(a_snapshot())), size) as (app, pilot):
            assert "Show everything about this process" in text(app)
            assert fits(app)
            await press(pilot, "G")
            assert "gpuwatch docs" in text(app)
            await press(pilot, "g", "j", "space", "b", "k")
            assert "Enter" in text(app)
            await press(pilot, key)
            assert not isinstance(app.screen, HelpScreen)


@pytest.mark.parametrize("keys", [KEYS, replay_keys()])
async def test_help_is_one_screen_in_a_wide_terminal(keys: Sequence[BoundKey]) -> None:
    """Also while shares cannot be read; nothing is wrapped, and each key has its line."""
    seen = a_snapshot()
    hidden = replace(seen.processes[0], declared=Declared(knowledge=Knowledge.UNREADABLE))
    async with shown(HelpScreen(keys, frame_of(replace(seen, processes=(hidden,)))), (160, 50)) as (app, _):
        lines = text(app).split("\n")
        assert not any("▐" in line for line in lines), "there is nothing to scroll to"
        screen = app.screen
        assert isinstance(screen, HelpScreen)
        parts = [(one.part, len(one.lines)) for one in screen.drawing.placed if isinstance(one.part, Section)]
        assert [lines for _, lines in parts] == [1 + len(part.facts) for part, _ in parts]
        assert next(lines for part, lines in parts if part.title == "Terms") <= 25


@pytest.mark.uncounted
async def test_detail_shows_hostile_text_as_it_is() -> None:
    for size in ((160, 50), (60, 10)):
        app = Host()
        async with app.run_test(size=size) as pilot:
            for command in HOSTILE:
                seen = a_snapshot(command, parent=command[:60], name=command[:60])
                await app.push_screen(DetailScreen(key_of(seen), frame_of(seen)))
                await pilot.pause()
                assert command[:8] in text(app)
                assert fits(app)
                await pilot.click("#body", offset=(20, 1))
                await press(pilot, "enter")
                assert not isinstance(app.screen, DetailScreen)


async def test_detail_tells_reasons_and_all_gpus() -> None:
    part = builders.holding(PID, 1.0, gpu_instance=3, compute_instance=0)
    bare = Gpu(index=7, uuid="GPU-7", mig=True, holdings=(part,))
    whole = builders.holding(PID, 8.0, kind="C+G", encoder=Reason.UNSUPPORTED, gpu_instance=0)
    full = builders.gpu(2, holdings=[whole])
    seen = builders.snapshot([bare, full], [builders.process(PID, "you", cpu=Reason.DENIED, terminal="")])
    places = {"On GPU 7", "On GPU 2", "GPU-7", "GPU 2, 7", "GPU instance 3, compute instance 0", "bash 900"}
    words = {"compute and graphics", "no sample", "no permission"}
    async with shown(DetailScreen(key_of(seen), frame_of(seen)), (160, 70)) as (app, _):
        assert [word for word in places | words if word not in text(app)] == []
        assert [
            words
            for words in ("slowed down by  nothing", "ECC", "terminal", "0 B of unknown", "GPU instance 0")
            if words in text(app)
        ] == []


async def test_detail_lives_and_tells_when_the_process_is_gone() -> None:
    seen = a_snapshot()
    screen = DetailScreen(key_of(seen), frame_of(seen))
    async with shown(screen) as (app, pilot):
        grown = builders.at(builders.snapshot([builders.gpu(4, holdings=[builders.holding(PID, 13.5)])]), 1)
        screen.refresh_frame(frame_of(grown))
        await pilot.press("pagedown", "k")
        await until(pilot, lambda: "13.5 GiB" in text(app))
        silent = builders.snapshot([builders.gpu(4, health=Health.SILENT)])
        screen.refresh_frame(frame_of(builders.at(silent, 12)))
        await until(pilot, lambda: "its GPU reports no processes now" in text(app))
        screen.refresh_frame(frame_of(builders.at(builders.snapshot([builders.gpu(4)]), 15)))
        await until(pilot, lambda: "Ended, or released its GPU memory, 14 s ago" in text(app))
        assert screen.page.over
        await pilot.press("K")
        assert app.asked == []
        screen.refresh_frame(frame_of(grown))
        await pilot.press("K")
        await until(pilot, lambda: app.asked == [("end", key_of(seen), False)])


async def test_detail_of_a_process_that_no_frame_has() -> None:
    async with shown(DetailScreen(("GPU-x", 1, 1), frame_of(a_snapshot())), (60, 10)) as (app, pilot):
        assert "no longer on a GPU" in text(app)
        await pilot.press("K", "q")
        assert app.asked == []


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words_and_is_no_number(reason: Reason) -> None:
    shown = field_fact(GPU["power"], Gpu(index=0, power=reason))
    assert shown.missing
    assert shown.value == REASONS[reason]


def test_a_gpu_in_trouble_says_so() -> None:
    gpu = builders.gpu(
        0, health=Health.LOST, words="GPU_IS_LOST (nvmlX)", since=builders.EPOCH, compute_mode="denied", sampled=0.0
    )
    facts = facts_of(gpu_section(gpu, builders.snapshot([gpu])))
    assert facts["problem"] == "GPU_IS_LOST (nvmlX)"
    assert facts["health"].startswith("lost, since ")
    assert facts["compute mode"] == "no permission"
    assert facts["last read"] == "never"


async def test_a_command_runs_the_action_of_the_app() -> None:
    class Listening(Host):
        COMMANDS = {GpuwatchCommands}  # noqa: RUF012 - Textual declares it so

        def palette_commands(self) -> list[PaletteCommand]:
            return commands(KEYS)

        def action_sort_by(self, column: str) -> None:
            self.asked.append(column)

    app = Listening()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await pilot.press(*"sort by memory")
        await until(pilot, lambda: bool(getattr(app.screen, "_hit_count", 0)))
        await pilot.press("enter")
        await until(pilot, lambda: app.asked == ["memory"])


TMUX = Pane(program="tmux", session="$1", window="%3", alive=True)
ENDED = Pane(program="screen", session="train", window="2", alive=False)
VLLM = Container(runtime="docker", id="3f9a1c0b77d2", name="vllm")
PODMAN = Container(runtime="podman", id="3f9a1c0b77d2", name="train")
KERNEL = Notebook(kernel="ab12cd34", path="x/explore.ipynb", server=77)
RANK = Run(key="9:9", name="train.py", launcher="torchrun", head=9, rank=3, world=8)
WORKER = Run(key="9:9", name="train.py", worker_of=8, orphaned=True)


def around(**places: object) -> Process:
    return process(10, context=ProcessContext(**places))  # type: ignore[arg-type]


def told(one: Process) -> dict[str, str]:
    return {fact.label: fact.value for fact in place_section(one).facts}


@pytest.mark.parametrize(
    ("places", "where", "label", "words"),
    [
        ({"pod": "serving/triton-7d9f"}, "pod triton-7d9f", "pod", "serving/triton-7d9f"),
        ({"container": VLLM}, "docker vllm", "container", "docker vllm (3f9a1c0b77d2)"),
        ({"container": Container(runtime="podman", id="3f9a")}, "podman 3f9a", "container", "podman 3f9a"),
        ({"container": PODMAN, "pod": "vision"}, "podman train, pod vision", "pod", "vision"),
        ({"slurm": "4711.0"}, "slurm 4711.0", "Slurm job", "4711.0"),
        ({"unit": "ollama.service"}, "ollama", "systemd unit", "ollama.service"),
        ({"notebook": KERNEL}, "notebook explore.ipynb", "notebook", "x/explore.ipynb · kernel ab12cd34 · server 77"),
        ({"notebook": Notebook(left=True)}, "notebook", "notebook", "its server has ended"),
        ({"pane": TMUX}, "tmux $1 %3", "terminal", "tmux session $1, pane %3"),
        ({"pane": ENDED}, "screen train 2", "terminal", "screen session train, window 2, which has ended"),
        ({"ssh": "10.0.0.5"}, "ssh 10.0.0.5", "SSH login", "from 10.0.0.5"),
        ({"login": "ada", "login_uid": 1001}, "", "logged in as", "ada (uid 1001)"),
        ({"server": "listens on port 8000"}, "", "server", "listens on port 8000"),
        ({"peer": "10.0.0.5:29500"}, "", "connected to", "10.0.0.5:29500"),
        ({"run": RANK}, "", "run", "train.py · torchrun · rank 3 of 8 · first PID 9"),
        ({"run": WORKER}, "", "run", "train.py · worker of 8 · its run has ended"),
        ({"words": "no permission to read its environment"}, "", "not read", "no permission to read its environment"),
    ],
)
def test_each_place_has_a_word_in_the_list_and_a_line_in_the_detail(
    places: dict[str, object], where: str, label: str, words: str
) -> None:
    one = around(**places)
    assert one.context is not None
    assert one.context.where == where
    assert told(one)[label] == words


def test_nothing_known_is_said_so() -> None:
    assert told(process(10)) == {"place": "not read yet"}
    assert told(process(10, presence=Presence.HIDDEN)) == {"place": "not known"}
    assert told(around()) == {"place": "no container, job, terminal or login found"}


def test_what_is_gone_of_its_session_is_said() -> None:
    one = process(10, context=ProcessContext(), session=900, leader_alive=False, adopted=True, parent="systemd")
    assert told(one) == {
        "login": "the leader of its session (900) has ended",
        "parent": "has ended; adopted by systemd",
    }
