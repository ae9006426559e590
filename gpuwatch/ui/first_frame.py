"""First frame of the dashboard: drawn on the terminal before Textual is imported, which takes 0.12 s.

Textual takes the terminal over as it is, and draws its own first frame over this one: nothing is blank meanwhile. Keys
that are typed before wait in the terminal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import time
from typing import TYPE_CHECKING, Any, Final

from gpuwatch.model.filters import FilterError
from gpuwatch.ui.draw.dashboard import DashboardState, draw
from gpuwatch.ui.draw.footer import hints
from gpuwatch.ui.draw.keys import dashboard_keys
from gpuwatch.ui.draw.sgr import colors_of, sequence
from gpuwatch.ui.draw.theme import make_styles, theme_id
from gpuwatch.ui.draw.view import refused_actions, strays_of, view_of
from gpuwatch.ui.terminal import ExitWatchdog, bounded, is_utf8_terminal

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame
    from gpuwatch.ui.options import Options

ALTERNATE_SCREEN: Final = "\x1b[?1049h"
"""Sequence that Textual enters the alternate screen with."""
_HIDE_CURSOR: Final = "\x1b[?25l"
_LEAVE: Final = "\x1b[?1049l\x1b[?25h"


class FirstFrame:
    """First frame with what passes on to the app: cursors, people's colours and initials, and the way back.

    The terminal belongs to this until `hand_over`; an end before that goes through `close`.
    """

    def __init__(self, options: Options) -> None:
        self.state = DashboardState()
        self.styles = make_styles(
            theme_id(options.theme),
            ascii_only=options.ascii or not is_utf8_terminal(),
            colors=colors_of(os.environ),
        )
        self.watchdog = ExitWatchdog(sys.stdin.fileno())
        self.shown = False
        self._options = options
        self._modes: list[Any] | None = None
        """Modes of the terminal before; None while it does not belong to this."""
        self._stop_asked = False
        """Whether a SIGTSTP came, which the app must answer."""

    def show(self, frame: Frame) -> None:
        """Take the terminal, and draw a frame that has a GPU; raises NoThreadError."""
        lines = self._draw(frame)
        descriptor = sys.stdin.fileno()
        self.watchdog.begin()
        self.shown = True
        signal.signal(signal.SIGTSTP, self._keep_stop)
        with contextlib.suppress(OSError, termios.error):  # the terminal has gone: the watchdog ends the program
            modes = termios.tcgetattr(descriptor)
            raw = termios.tcgetattr(descriptor)
            raw[0] &= ~(termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR)
            raw[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
            termios.tcsetattr(descriptor, termios.TCSANOW, raw)
            self._modes = modes
            _write(ALTERNATE_SCREEN + _HIDE_CURSOR + lines)

    def hand_over(self) -> list[Any] | None:
        """Leave the terminal to Textual's driver; return its modes from before, None where it was not taken.

        A SIGTSTP that came meanwhile is sent again: the driver handles it.
        """
        modes, self._modes = self._modes, None
        if self._stop_asked:
            self._stop_asked = False
            os.kill(os.getpid(), signal.SIGTSTP)
        return modes

    def close(self) -> None:
        """Restore the terminal if it was not handed over, and end the watchdog."""
        if self._modes is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._modes)
                _write(_LEAVE)
        self.watchdog.close()

    def _draw(self, frame: Frame) -> str:
        """Return the frame as terminal sequences."""
        options, state = self._options, self.state
        with contextlib.suppress(FilterError):  # the app tells the user
            state.set_options(options)
        keys = [hint for hint in hints(dashboard_keys(options.keys)) if hint[2] not in refused_actions(options)]
        strays = strays_of(frame, options)
        view = view_of(frame, time.monotonic(), self.styles, options, strays, options.interval)
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        size = bounded(columns or 80, rows or 24)  # as Textual does
        drawn = draw(view, state, size, keys)
        return sequence(drawn.lines(self.styles, size[0]), colors_of(os.environ))

    def _keep_stop(self, *_: object) -> None:
        self._stop_asked = True


def _write(data: str) -> None:
    left = data.encode()
    while left:
        left = left[os.write(sys.stderr.fileno(), left) :]
