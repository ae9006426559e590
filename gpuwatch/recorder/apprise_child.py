"""Child process that sends a message by apprise, or checks whether apprise understands URLs.

    python -P gpuwatch/recorder/apprise_child.py

It reads one JSON object from stdin (`urls`, `title`, `body`, `kind`, `check`) and writes one to stdout: `installed`,
and `results` in the order of the URLs, each with `ok` and `why`. It imports nothing of gpuwatch. The URLs are secret,
and apprise's log may contain them: from the log only the words of `_WORDS` and status codes leave this process.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LIMIT = 45
"""Seconds after which the child ends by itself, in case its parent has died."""

_WORDS = (
    ("timeout", re.compile(r"timed? ?out", re.IGNORECASE)),
    ("refused", re.compile(r"connection refused", re.IGNORECASE)),
    ("host", re.compile(r"failed to resolve|name or service not known|name resolution|nodename", re.IGNORECASE)),
    ("route", re.compile(r"no route to host|unreachable", re.IGNORECASE)),
    ("certificate", re.compile(r"CERTIFICATE_VERIFY_FAILED")),
    ("login", re.compile(r"authentication", re.IGNORECASE)),
)
"""Reasons, each with the pattern of its line in apprise's log."""


class Listener(logging.Handler):
    """Log handler that finds known reasons of failure in apprise's log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.why = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Read one record of the log; only the first reason found is kept."""
        line = record.getMessage()
        # Below a warning the log also has the message itself, which may hold such words.
        if self.why or (record.levelno < logging.WARNING and "Exception" not in line[:40]):
            return
        status = re.search(r"\berror=([1-5][0-9]{2})\b", line)
        found = [word for word, pattern in _WORDS if pattern.search(line)]
        self.why = f"http {status[1]}" if status else found[0] if found else ""


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order: check the URLs or send the message, and return the result."""
    try:
        import apprise
    except ImportError:
        return {"installed": False, "results": []}
    # Without a picture from the project's own site, and without anything kept on disk.
    asset = apprise.AppriseAsset(
        app_id="gpuwatch",
        app_desc="gpuwatch",
        app_url="",
        image_url_mask="",
        image_url_logo="",
        storage_mode=apprise.PersistentStoreMode.MEMORY,
    )
    services = [apprise.Apprise.instantiate(url, asset=asset) for url in order["urls"]]
    if order["check"]:
        results = [{"ok": service is not None, "why": "" if service else "form"} for service in services]
        return {"installed": True, "results": results}
    listener = Listener()
    logger = logging.getLogger("apprise")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(listener)

    def send(service: Any) -> dict[str, Any]:
        if service is None:
            return {"ok": False, "why": "form"}
        sender = apprise.Apprise(asset=asset)
        sender.add(service)
        sent = bool(
            sender.notify(
                order["body"] or order["title"],
                title=order["title"] if order["body"] else "",
                notify_type=order["kind"],
                body_format="text",
            )
        )
        return {"ok": sent, "why": "" if sent or len(services) > 1 else listener.why}

    with ThreadPoolExecutor(max(1, len(services))) as pool:
        return {"installed": True, "results": list(pool.map(send, services))}


def main() -> None:
    """Read the order from stdin, carry it out, write the result to stdout; discard what a service prints."""
    signal.alarm(LIMIT)
    stdout = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    result = answer(json.load(sys.stdin.buffer))
    os.write(stdout, json.dumps(result).encode())
    os._exit(0)  # not by way of threads that a service may have left behind


if __name__ == "__main__":
    main()
