"""The environment of a process, from the bytes of /proc/PID/environ."""

from __future__ import annotations

from gpuwatch.declared.facts import Unread


def decode(raw: bytes) -> str:
    """Give foreign bytes as text that can be turned back into the same bytes; nothing to show before `text.clean`."""
    return raw.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Give the bytes that `decode` was given."""
    return text.encode("utf-8", "surrogateescape")


def parse(raw: bytes) -> dict[str, str] | Unread:
    """Read an environment block: `NAME=value`, each ended by a NUL; the first of two equal names counts, as in getenv.

    A program that shows a title of its own (setproctitle) writes it over its arguments and its environment, and fills
    the rest of both with NULs, while os.environ goes on to work: then nothing is known of the environment. The title's
    end may itself have an `=` in it, so a block that is mostly NULs at its end is no environment either.
    Source: proc_pid_environ(5); github.com/dvarrazzo/py-setproctitle README, SPT_NOENV.
    """
    if not raw:
        return {}
    written = raw.rstrip(b"\0")
    if b"=" not in written or len(written) < len(raw) // 2:
        return Unread.OVERWRITTEN
    found: dict[str, str] = {}
    for entry in written.split(b"\0"):
        name, given, value = entry.partition(b"=")
        if given and name:
            found.setdefault(decode(name), decode(value))
    return found
