"""Control sequences for the terminal: a desktop notification, the clipboard.

| terminal | OSC 9 | OSC 777 | source |
|---|---|---|---|
| iTerm2 | yes | no | iterm2.com/documentation-escape-codes.html |
| Ghostty | yes | yes | ghostty.org/docs/vt/osc/9; its parser's tests have `777;notify` |
| kitty | yes | 0.24 | sw.kovidgoyal.net/kitty/changelog |
| WezTerm | yes | yes | wezterm.org/escape-sequences.html |
| foot | yes | yes | foot-ctlseqs(7) |
| Warp | yes | yes | docs.warp.dev, notifications |
| rxvt-unicode | no | with its extension | urxvt(7): 777 is `extension:parameters` |
| VTE (GNOME Terminal …) | no | Fedora's patch | gitlab.com/BuildStream/buildstream!692; others swallow it from 0.46 |
| Windows Terminal | progress | 2026 | microsoft/terminal#20012; OSC 9 is ConEmu's there |
| tmux | passed on | passed on | tmux/tmux#5136; `allow-passthrough` is off since 3.3 |

A terminal ignores a sequence that it does not know.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from gpuwatch.base import text

Osc: TypeAlias = Literal["osc9", "osc777"]

MOST: Final = 200
"""Largest number of characters of a notification with its title: desktops show about three lines."""

_TITLE: Final = 60
_ESC: Final = "\x1b"
_BEL: Final = "\a"

_PROGRAMS: Final[dict[str, Osc]] = {
    "iterm.app": "osc9",
    "iterm2": "osc9",
    "ghostty": "osc9",
    "warpterminal": "osc9",
    "wezterm": "osc777",
    "rxvt": "osc777",
}
"""Sequence by the value of TERM_PROGRAM, or of LC_TERMINAL, which ssh may pass on."""
_MARKS: Final[dict[str, Osc]] = {
    "KITTY_WINDOW_ID": "osc9",
    "GHOSTTY_RESOURCES_DIR": "osc9",
    "ITERM_SESSION_ID": "osc9",
    "WEZTERM_PANE": "osc777",
}
"""Sequence by a variable that only one terminal sets."""
_TERMS: Final[tuple[tuple[str, Osc], ...]] = (
    ("xterm-kitty", "osc9"),
    ("xterm-ghostty", "osc9"),
    ("wezterm", "osc777"),
    ("foot", "osc777"),
    ("rxvt-unicode", "osc777"),
)
"""Sequence by the beginning of TERM, the only variable that ssh always passes on."""
_VTE: Final = 4600
"""First VTE_VERSION that ignores an unknown sequence; older versions print it."""


def which_osc(environ: Mapping[str, str]) -> Osc | None:
    """Return the sequence that this terminal shows as a notification; None where it is not known.

    Inside tmux the terminal is the one in which tmux was started, if its variables are still set. Inside GNU screen,
    which passes no such sequence on, and on the Linux console the result is None.
    """
    if environ.get("STY") or environ.get("TERM") in ("linux", "dumb"):
        return None
    for name in (environ.get(one, "").lower() for one in ("TERM_PROGRAM", "LC_TERMINAL")):
        if name in _PROGRAMS:
            return _PROGRAMS[name]
    for mark, kind in _MARKS.items():
        if environ.get(mark):
            return kind
    term = environ.get("TERM", "")
    for start, kind in _TERMS:
        if term.startswith(start):
            return kind
    version = environ.get("VTE_VERSION", "")
    return "osc777" if version.isascii() and version.isdigit() and int(version[:9]) >= _VTE else None


def notification(kind: Osc, title: str, body: str = "", *, tmux: bool = False, ascii_only: bool = False) -> str:
    """Return the control sequence for a notification; control characters in `title` and `body` are removed.

    `tmux` wraps the sequence for the terminal around tmux, which gets it only with `set -g allow-passthrough on`.
    `ascii_only` is for a terminal without UTF-8, where a byte of a multibyte character could end the sequence.
    """
    title = _plain(title, _TITLE, ascii_only=ascii_only)
    body = _plain(body, MOST - len(title) - 2, ascii_only=ascii_only)
    if kind == "osc777":
        payload = f"777;notify;{title};{body}"
    else:
        words = f"{title}: {body}" if title and body else title or body
        # ConEmu's sequences are OSC 9 and a number: what begins with one might be taken for progress or worse.
        payload = f"9;{words}" if not words[:1].isdigit() else f"9;- {words}"
    sequence = f"{_ESC}]{payload}{_BEL}"
    return passed_through(sequence) if tmux else sequence


def passed_through(sequence: str) -> str:
    """Wrap a sequence so that tmux passes it to the terminal around tmux, if `allow-passthrough` is on."""
    return f"{_ESC}Ptmux;{sequence.replace(_ESC, _ESC * 2)}{_ESC}\\"


def clipboard(words: str, *, tmux: bool = False) -> str:
    """Return the control sequence that puts words on the terminal's clipboard: OSC 52, in base64.

    With `tmux` there are two sequences: one for tmux, which needs `set-clipboard on`, and one for the terminal around
    tmux, which needs `allow-passthrough on`. Source: xterm's ctlseqs, Operating System Commands; tmux(1).
    """
    sequence = f"{_ESC}]52;c;{b64encode(words.encode()).decode()}{_BEL}"
    return sequence + passed_through(sequence) if tmux else sequence


def _plain(words: str, limit: int, *, ascii_only: bool) -> str:
    """Remove control characters, and replace `;`, which separates the fields."""
    if not ascii_only:
        return text.clean(words, limit).replace(";", ",")
    # Spelled before it is cut, for some signs take more in ASCII; the cut adds a sign of its own.
    words = text.spell_signs(text.clean(text.spell_signs(words), limit))
    return words.replace(";", ",").encode("ascii", "replace").decode()
