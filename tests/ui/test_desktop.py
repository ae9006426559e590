"""Notifications of the desktop by way of the terminal: which sequence, and that nothing breaks out of it."""

from __future__ import annotations

import re

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.ui.desktop import MOST, Osc, notification, passed_through, which_osc

KINDS: list[Osc] = ["osc9", "osc777"]
TEXTS = st.text(max_size=40) | st.text(min_size=1, max_size=20).map(lambda text: text * 20)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM_PROGRAM": "iTerm.app"}, "osc9"),
        ({"LC_TERMINAL": "iTerm2", "TERM": "xterm-256color"}, "osc9"),
        ({"TERM_PROGRAM": "WezTerm"}, "osc777"),
        ({"TERM": "xterm-kitty"}, "osc9"),
        ({"TERM": "foot-extra"}, "osc777"),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, "osc777"),
        ({"TERM": "xterm-256color", "VTE_VERSION": "4402"}, None),
        ({"TERM": "xterm-256color", "VTE_VERSION": "new"}, None),
        ({"TERM": "xterm-256color", "VTE_VERSION": "9" * 5000}, "osc777"),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "linux", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "screen", "STY": "1.pts", "KITTY_WINDOW_ID": "1"}, None),
        # tmux says its own name; the terminal it was started in left a mark.
        ({"TERM_PROGRAM": "tmux", "TERM": "tmux-256color", "TMUX": "/tmp/x", "WEZTERM_PANE": "0"}, "osc777"),
        ({"TERM_PROGRAM": "tmux", "TERM": "tmux-256color", "TMUX": "/tmp/x"}, None),
        ({}, None),
    ],
)
def test_the_terminal_is_known_by_what_it_sets(environ: dict[str, str], expected: Osc | None) -> None:
    assert which_osc(environ) == expected


def test_the_sequences() -> None:
    assert notification("osc9", "box3", "GPU 1 full") == "\x1b]9;box3: GPU 1 full\a"
    assert notification("osc777", "box3", "GPU 1 full") == "\x1b]777;notify;box3;GPU 1 full\a"
    assert notification("osc9", "box3") == "\x1b]9;box3\a"
    assert notification("osc9", "4;1;50") == "\x1b]9;- 4,1,50\a", "a text is no order of ConEmu's"
    assert notification("osc9", "a", "b", tmux=True) == "\x1bPtmux;\x1b\x1b]9;a: b\a\x1b\\"
    assert passed_through("\x1b]9;x\a") == "\x1bPtmux;\x1b\x1b]9;x\a\x1b\\"


def test_in_ascii_no_byte_is_beyond_it() -> None:
    told = notification("osc777", "▲ box3", "GPU 1 near its limit · 87 °C … é", ascii_only=True)
    assert told == "\x1b]777;notify;* box3;GPU 1 near its limit | 87 C ~ ?\a"


@given(st.sampled_from(KINDS), TEXTS, TEXTS, st.booleans(), st.booleans())
def test_nothing_breaks_out(kind: Osc, title: str, body: str, tmux: bool, plain: bool) -> None:
    told = notification(kind, title, body, tmux=tmux, ascii_only=plain)
    inner = told
    if tmux:
        assert told.startswith("\x1bPtmux;")
        assert told.endswith("\x1b\\")
        inner = told[len("\x1bPtmux;") : -2].replace("\x1b\x1b", "\x1b")
    found = re.fullmatch(r"\x1b\](9;|777;notify;)(.*)\a", inner, re.DOTALL)
    assert found is not None
    words = found[2]
    assert all(char.isprintable() or char in "\u200d" for char in words)
    assert words.count(";") == (1 if kind == "osc777" else 0)
    assert len(words) <= MOST + 2
    if plain:
        assert words.isascii()


@given(st.sampled_from(KINDS), TEXTS, TEXTS)
def test_a_terminal_draws_none_of_it(kind: Osc, title: str, body: str) -> None:
    screen = pyte.Screen(80, 24)
    pyte.Stream(screen).feed(f"before{notification(kind, title, body)}after")
    assert screen.display[0].rstrip() == "beforeafter"
    assert not any(line.strip() for line in screen.display[1:])
