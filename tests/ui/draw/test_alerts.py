"""Lines of alerts say from when their figures are, where these are old."""

from __future__ import annotations

import pytest

from gpuwatch.history.history import History
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.alerts import draw_alerts
from gpuwatch.ui.draw.lines import plain
from gpuwatch.ui.draw.theme import make_styles
from tests.support.builders import EPOCH, gpu, snapshot
from tests.support.screen import alert


@pytest.mark.parametrize(("since", "says"), [(0.0, False), (14.0, False), (16.0, True)])
def test_an_alert_that_is_not_judged_any_more_says_from_when_it_is(since: float, says: bool) -> None:
    kept = alert(raised_monotonic=100.0, lasted=30.0, seen=EPOCH + 30.0)
    frame = Frame(snapshot([gpu(1)]), 130.0 + since, History().view, alerts=(kept,))
    line = plain(draw_alerts(frame, make_styles("gpuwatch-dark"), 160, 1).lines[0])
    assert (": ben holds 40.0" in line) is says
    assert "ben holds 40.0" in line
