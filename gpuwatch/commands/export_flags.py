"""Flags for keys of `[export]`, and the exporter with these settings, for `export` and `watch`."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from gpuwatch.base import files
from gpuwatch.base.errors import UsageError
from gpuwatch.base.extras import install_hint
from gpuwatch.base.text import clean
from gpuwatch.config.keys import read_flag
from gpuwatch.config.types import Config, ExportConfig

if TYPE_CHECKING:
    from gpuwatch.export.exporter import Exporter

EXPORT_FLAGS: Final = ("listen", "web_config", "textfile", "per_process", "names")
"""Attributes of the flags for keys of `[export]`."""
_PATHS: Final = ("web_config", "textfile")


def add_export_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for keys of `[export]`."""
    parser.add_argument("--listen", metavar="ADDRESS", help="address and port (default 127.0.0.1:9836)")
    parser.add_argument(
        "--web-config",
        metavar="FILE",
        help="Prometheus's web configuration file, for other machines: TLS, passwords",
    )
    parser.add_argument(
        "--textfile", metavar="DIR", help="write a file for node_exporter into DIR instead of listening"
    )
    parser.add_argument("--per-process", metavar="N", help="also metrics of the N largest processes (default 0)")
    parser.add_argument("--names", metavar="WHICH", help="own: omit the names of other exporters (default: all)")


def start_export(args: argparse.Namespace, config: Config, stack: ExitStack) -> tuple[Exporter, str]:
    """Listen, or write the file, until `stack` is closed; return the sink, and a line with the place of its metrics.

    Raises UsageError, which names the flag or the key.
    """
    settings = settings_of(args, config.export)
    if settings.textfile and settings.web_config:
        raise UsageError("--web-config needs --listen; --textfile opens no port")
    try:
        from gpuwatch.export.exporter import TEXTFILE, Exporter, Server, TextFile, parse_address
    except ImportError as error:
        raise UsageError(f"the metrics need {clean(str(error.name))}: {install_hint('export')}") from None
    sink = Exporter(per_process=settings.per_process, names=settings.names, allowances=config.allowance)
    try:
        if settings.textfile:
            folder = Path(settings.textfile).expanduser()
            if os.geteuid() == 0 and (unsafe := files.check_source(folder / TEXTFILE, missing_ok=True)):
                raise UsageError(f"--textfile: {unsafe}")
            stack.callback(TextFile(sink, folder).close, 0.2)
            return sink, f"metrics go to {clean(settings.textfile)}"
        web = Path(settings.web_config).expanduser() if settings.web_config else None
        server = Server(sink, *parse_address(settings.listen), web, settings.hosts)
        stack.callback(server.close)
        return sink, f"metrics are at {server.url}"
    except UsageError as error:  # it names the flag
        flag, colon, words = str(error).partition(":")
        key = flag.removeprefix("--").replace("-", "_")
        if getattr(config.export, key, "") != getattr(ExportConfig(), key, "") and getattr(args, key, None) is None:
            flag = f"export.{key} in the configuration"
        raise UsageError(f"{flag}{colon}{words}") from None


def settings_of(args: argparse.Namespace, configured: ExportConfig) -> ExportConfig:
    """Return the settings of `[export]` under the flags; raises UsageError, which names the flag."""
    given: dict[str, Any] = {
        name: read_flag(ExportConfig, name, str(Path(text).absolute()) if text and name in _PATHS else text)
        for name in EXPORT_FLAGS
        if (text := getattr(args, name, None)) is not None
    }
    if "listen" in given and "textfile" in given:
        raise UsageError("--listen and --textfile cannot be used together: node_exporter serves the file")
    if "listen" in given:
        given.setdefault("textfile", "")
    return replace(configured, **given)
