"""`gpuwatch export`: metrics for Prometheus, and files for Prometheus and Grafana."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from gpuwatch.base.errors import UsageError
from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import add_export_flags, add_flags
from gpuwatch.commands.watch import run as watch
from gpuwatch.sources.sampler_process import SamplerProcess

FOLDER: Final = Path(__file__).parent.parent / "export"
FILES: Final = {"rules": "rules.yml", "dashboard": "dashboard.json", "scrape_config": "scrape.yml"}
"""File that each flag prints."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "demo", "gpu", "interval")
    add_export_flags(parser)
    parser.add_argument("--rules", action="store_true", help="print recording and alerting rules")
    parser.add_argument("--dashboard", action="store_true", help="print a dashboard for Grafana")
    parser.add_argument("--scrape-config", action="store_true", help="print the lines for prometheus.yml")


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Serve metrics until a signal ends the program, or print a file; return the exit code."""
    printed = [name for name in FILES if getattr(args, name)]
    if len(printed) > 1:
        flags = [f"--{name.replace('_', '-')}" for name in printed]
        raise UsageError(f"{flags[0]} and {flags[1]} cannot be used together")
    if printed:
        Console(ascii_only=bool(args.ascii)).print(*(FOLDER / FILES[printed[0]]).read_text("utf-8").splitlines())
        return 0
    return watch(args, sampler, events=False, record=False)
