"""Notices shown in place of the panels: the state, its reason, and what to do next."""

from __future__ import annotations

from textwrap import wrap

from gpuwatch.model.snapshot import Snapshot, SourceState
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.layout import MIN_HEIGHT, MIN_WIDTH
from gpuwatch.ui.draw.lines import Line, LineBuilder, blank, centred
from gpuwatch.ui.draw.theme import Role, StyleSet
from gpuwatch.ui.draw.view import clock

_TITLES = {
    SourceState.STARTING: "starting",
    SourceState.NO_DRIVER: "no NVIDIA driver",
    SourceState.DRIVER_DOWN: "the driver does not answer",
    SourceState.NO_GPU: "no GPU",
    SourceState.SILENT: "the driver is not responding",
    SourceState.UNREACHABLE: "the host sends no data",
    SourceState.ENDED: "the data source has ended",
    SourceState.OK: "no GPU",
}
_NEXT = {
    SourceState.NO_DRIVER: "gpuwatch checks again automatically; R checks now",
    SourceState.DRIVER_DOWN: "gpuwatch retries automatically; R retries now",
    SourceState.NO_GPU: "gpuwatch checks again automatically; R checks now",
    SourceState.SILENT: "gpuwatch keeps asking; R asks now",
    SourceState.UNREACHABLE: "gpuwatch retries automatically; R retries now",
}


def starting_words(seconds: float, waits_for: str = "") -> list[tuple[str, Role]]:
    """Return the words shown before the first sample: after a second the waiting time and its cause."""
    if seconds < 1:
        return [("", "muted")]
    words: list[tuple[str, Role]] = [(f"starting: {seconds:.0f} s", "text")]
    if waits_for:
        words.append((waits_for, "muted"))
    if seconds >= 5:
        words.append(("the driver is slow to answer; on a cold start it needs up to a minute", "muted"))
    return words


def state_words(seen: Snapshot) -> list[tuple[str, Role]]:
    """Return the words for the state of the stream: since when, why, and what to do."""
    since = f" since {clock(seen.since)}" if seen.since and seen.state is not SourceState.NO_DRIVER else ""
    title = _TITLES[seen.state] + since
    if seen.state is SourceState.UNREACHABLE and not seen.since:
        title = "the host has sent no data yet"
    words: list[tuple[str, Role]] = [(title, "strong")]
    if seen.words:
        words += [("", "muted"), (seen.words, "text")]
    if seen.state in _NEXT:
        words += [("", "muted"), (_NEXT[seen.state], "muted")]
    return words


def nothing_words(seen: Snapshot) -> str:
    """Return in one line why a list may be incomplete: no GPU, or GPUs without process lists; else empty."""
    if seen.state is not SourceState.OK or not seen.gpus:
        return " · ".join(words for words in (_TITLES[seen.state], seen.words) if words)
    return " · ".join(sorted({gpu.holdings_note for gpu in seen.gpus if gpu.holdings_note}))


def notice_lines(words: list[tuple[str, Role]], styles: StyleSet, width: int, height: int) -> list[Line]:
    """Return words in the middle of an area, wrapped at 76 cells."""
    lines: list[Line] = []
    for text, role in words:
        wrapped = wrap(text, max(1, min(76, width - 2))) if text else [""]
        lines += [centred(styles, one, width, role) for one in wrapped]
    above = max(0, (height - len(lines)) // 2 - height // 8)
    lines = [*[blank(styles, width)] * above, *lines][:height]
    return lines + [blank(styles, width)] * (height - len(lines))


def tiny_lines(frame: Frame | None, styles: StyleSet, width: int, height: int, *, prompt: bool = False) -> list[Line]:
    """Return the lines of a terminal that is too small: the needed size, and the worst alert.

    With `prompt` the last line is left to the prompt.
    """
    size = f"gpuwatch needs {MIN_WIDTH}×{MIN_HEIGHT}, this window is {width}×{height}; still watching"
    worst = next((one.title for one in frame.alerts if not one.quiet), "") if frame is not None else ""
    alert: list[tuple[str, Role]] = [(words, "critical") for words in wrap(worst, max(1, width))]
    text: list[tuple[str, Role]] = [*((words, "text") for words in wrap(size, max(1, width))), *alert]
    room = max(0, height - prompt)
    if len(text) > room:  # the alert matters more than the size
        text = alert or text
    lines = [LineBuilder(styles).write(words, role).build(width) for words, role in text[:room]]
    return lines + [blank(styles, width)] * (room - len(lines))
