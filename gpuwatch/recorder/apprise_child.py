"""Child process that sends a message by apprise, or checks whether apprise understands URLs and reaches their hosts.

It reads one JSON object from stdin (`urls`; to send to the first of them also `title`, `body` and `kind`; to connect to
their hosts and send nothing `reach`), and writes a list to stdout: for each URL why it failed, or empty. It imports
nothing of gpuwatch. The URLs are secret, and apprise's log may contain them: only the words below, a status code, and a
host with its port leave this process.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import getproxies

LIMIT = 45
"""Seconds after which the child ends by itself, in case its parent has died."""

NOT_INSTALLED = "needs apprise"
NO_ADDRESS = "is not an address: addresses begin like mailto://"
UNKNOWN = "has an address that apprise does not understand"
REASONS = {
    r"timed? ?out": "does not answer (timeout)",
    r"connection refused": "cannot be reached (connection refused)",
    r"failed to resolve|name or service|name resolution|nodename|no address": "cannot be reached (unknown host)",
    r"no route to host|unreachable": "cannot be reached (no route)",
    r"certificate_verify_failed": "has a certificate that is not trusted",
    r"authentication": "does not accept the login",
}
"""Reasons of failure, each by the pattern of its line in apprise's log."""
HOSTED = frozenset({"apprise", "form", "gotify", "json", "mailto", "ntfy", "xml"})
"""Schemes of services whose URL names the host, without the s of their secure form; others have fixed addresses."""
CONNECT = 4.0
"""Seconds that a host may take to accept a connection, as long as apprise gives it."""


def find_reason(line: str) -> str:
    """Return the known reason of failure in a line; empty where there is none."""
    return next((words for pattern, words in REASONS.items() if re.search(pattern, line, re.IGNORECASE)), "")


class Listener(logging.Handler):
    """Log handler that finds the first known reason of failure in apprise's log."""

    reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        # Below a warning the log also has the message itself, which may hold such words.
        if self.reason or (record.levelno < logging.WARNING and "Exception" not in line[:40]):
            return
        if status := re.search(r"\berror=([1-5][0-9]{2})\b", line):
            self.reason = f"refuses (HTTP {status[1]})"
        else:
            self.reason = find_reason(line)


def carry_out(order: dict[str, Any]) -> list[str]:
    """Check the URLs, or send the message to the first of them; return for each why it failed, or empty."""
    try:
        import apprise
    except ImportError:
        return [NOT_INSTALLED for _ in order["urls"]]
    # Without a picture from the project's own site, and without anything kept on disk.
    texts: dict[str, Any] = dict.fromkeys(("app_url", "image_url_mask", "image_url_logo"), "")
    texts |= {"app_id": "gpuwatch", "app_desc": "gpuwatch"}
    asset = apprise.AppriseAsset(**texts, storage_mode=apprise.PersistentStoreMode.MEMORY)
    reasons, services = [], []
    for url in order["urls"]:
        is_url = re.match(r"[a-zA-Z][a-zA-Z0-9]{1,30}://.", url)
        services.append(apprise.Apprise.instantiate(url, asset=asset) if is_url else None)
        reasons.append("" if services[-1] else UNKNOWN if is_url else NO_ADDRESS)
    if "reach" in order:
        os.environ["RES_OPTIONS"] = "timeout:2 attempts:1"  # resolv.conf(5): else a name may take 30 s
        with ThreadPoolExecutor(len(services)) as pool:
            hosts = pool.map(check_host, order["urls"], services)
            return [reason or host for reason, host in zip(reasons, hosts, strict=True)]
    if "title" not in order or services[0] is None:
        return reasons
    listener = Listener(logging.DEBUG)
    logger = logging.getLogger("apprise")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(listener)
    sender = apprise.Apprise(services[0], asset=asset)
    title, body = (order["title"], order["body"]) if order["body"] else ("", order["title"])
    is_sent = sender.notify(body, title=title, notify_type=order["kind"], body_format="text")
    return ["" if is_sent else listener.reason or "did not accept the message"]


def check_host(url: str, service: Any) -> str:
    """Connect to the host that a URL names, and close the connection; return why that failed, or empty.

    Behind a proxy only mail goes directly to its host. The host of ntfy's own service is the topic, a secret.
    """
    mail, is_hosted = getattr(service, "smtp_host", ""), url.partition("://")[0].lower().removesuffix("s") in HOSTED
    if not service or not is_hosted or getattr(service, "mode", "") == "cloud" or (getproxies() and not mail):
        return ""
    host, port = (mail or service.host).strip("[]"), service.port or (443 if service.secure else 80)
    try:
        socket.create_connection((host, port), CONNECT).close()
    except (OSError, UnicodeError, OverflowError) as error:
        return f"{host}:{port} {find_reason(str(error)) or 'cannot be reached'}"
    return ""


def main() -> None:
    """Read the order from stdin, carry it out, write the result to stdout; discard the output of a service."""
    signal.alarm(LIMIT)
    stdout = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.write(stdout, json.dumps(carry_out(json.load(sys.stdin.buffer))).encode())
    os._exit(0)  # not by way of threads that a service may have left behind


if __name__ == "__main__":
    main()
