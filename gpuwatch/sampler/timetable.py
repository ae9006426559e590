"""When which figure is asked next, so that no tick has more calls than its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

Task = TypeVar("Task")


class Timetable(Generic[Task]):
    """Tasks that come round every so many seconds, those of one period spread evenly over it."""

    def __init__(self, tasks: Mapping[float, Sequence[Task]]) -> None:
        """Take the tasks by their period in seconds."""
        self._tasks = tasks
        self._due: list[tuple[float, float, Task]] | None = None

    def restart(self) -> None:
        """Let all tasks be due at the next look."""
        self._due = None

    def hasten(self, task: Task) -> None:
        """Let one task be due at the next look, before all others."""
        self._due = [(0.0 if other == task else due, period, other) for due, period, other in self._due or []] or None

    def take(self, now: float, most: int) -> list[Task]:
        """Give the tasks that are due, the longest overdue first and no more than `most`; all of them at the start."""
        if self._due is None:
            self._due = [
                (now + period * (place + 1) / len(tasks), period, task)
                for period, tasks in self._tasks.items()
                for place, task in enumerate(tasks)
            ]
            return [task for _, _, task in self._due]
        overdue = sorted((entry[0], place) for place, entry in enumerate(self._due) if entry[0] <= now)[:most]
        taken = []
        for due, place in overdue:
            _, period, task = self._due[place]
            # From its own time on, so that the spread holds; from now on where a whole round was missed.
            self._due[place] = (due + period if due + period > now else now + period, period, task)
            taken.append(task)
        return taken
