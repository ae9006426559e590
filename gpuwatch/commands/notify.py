"""`gpuwatch notify --test`: sends one message to each address of `[notify]`, and reports whether it arrived."""

from __future__ import annotations

import argparse
import os
import time

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.base.errors import UsageError
from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import add_flags
from gpuwatch.commands.startup import configured
from gpuwatch.config.paths import path
from gpuwatch.recorder.messages import make_routes, raised


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    parser.add_argument("--test", action="store_true", help="send one message now, and report whether it arrived")


def main(args: argparse.Namespace, _sampler: object = None) -> int:
    """Send the message and return the exit code: 1 where an address failed; raises UsageError."""
    if not args.test:
        raise UsageError("notify: --test is missing; `gpuwatch notify --test` sends one message")
    config = configured(args)
    routes = make_routes(config.notify)
    if not routes:
        raise UsageError(f"[notify] has no command and no urls; write them into {args.config or path()}")
    now, console = time.time(), Console(ascii_only=config.ascii)
    alert = Alert(
        rule=TROUBLE,
        host=os.uname().nodename,
        severity=Severity.NOTE,
        title="test message",
        evidence="sent by `gpuwatch notify --test`; nothing is wrong",
        raised=now,
        seen=now,
    )
    for route in routes:
        route.deliver([raised(alert)], together=1, is_stopped=lambda: False)
        if route.trouble:
            console.warn(route.trouble)
        else:
            console.print(f"{route.name} accepted the message")
    return int(any(route.trouble for route in routes))
