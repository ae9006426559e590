"""What tests of the exporter need: an exporter with one frame, its metrics as text, and the programs of Prometheus."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpuwatch.export.exporter import Exporter
from gpuwatch.history.history import History
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.monitor import Frame
from tests.support.builders import at
from tests.support.prometheus import needs

RECEIVED = 5000.0
Labels = Mapping[str, str]


def exporter(shown: Snapshot, *, age: float = 0.5, seconds: int = 0, **settings: Any) -> Exporter:
    """Return an exporter that has seen a snapshot for so many seconds, scraped `age` seconds after the last one."""
    made = Exporter(clock=lambda: RECEIVED + seconds + age, **settings)
    history = History()
    for second in range(seconds + 1):
        seen, now = at(shown, second) if seconds else shown, RECEIVED + second
        made.take(Frame(seen, now, history.add(seen, now), number=second))
    return made


def text_of(made: Exporter) -> str:
    """Return the metrics as Prometheus reads them."""
    return generate_latest(made.registry).decode()


def metrics(made: Exporter) -> dict[str, list[tuple[Labels, float]]]:
    """Return the samples of each metric, as a parser of its own reads them."""
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(text_of(made)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def promtool(*words: str, content: str = "") -> str:
    """Run promtool, and return what it prints; fails with that where it finds fault."""
    done = subprocess.run([needs("promtool"), *words], input=content, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
