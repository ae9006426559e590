"""Rules and exporter with Prometheus's own programs: promtool judges the rules, and a server fires an alert by them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.commands.export import FILES, FOLDER
from gpuwatch.config.types import FleetSettings
from gpuwatch.fleet.overview import QUERIES
from gpuwatch.fleet.prometheus import PrometheusClient
from gpuwatch.fleet.reader import read_fleet
from tests import GPUWATCH
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.prometheus import free_port, needs, promtool
from tests.support.waiting import wait_for

HERE = Path(__file__).parent
JUDGED = (HERE / "rules_judged.yml").read_text()

OF_NODES = (HERE / "rules_of_nodes.yml").read_text()


def test_promtool_takes_the_rules_and_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    rules = (FOLDER / FILES["rules"]).read_text()
    (tmp_path / "rules.yml").write_text(rules)
    (tmp_path / "judged.yml").write_text(JUDGED)
    promtool("check", "rules", str(tmp_path / "rules.yml"))
    (tmp_path / "nodes.yml").write_text(OF_NODES.replace("rules.yml", "alerts.yml").replace("QUERY", f"'{QUERIES[2]}'"))
    alerts = rules[rules.index("  - name: gpuwatch-alerts") :]
    (tmp_path / "alerts.yml").write_text(f"groups:\n{alerts}")
    promtool("test", "rules", str(tmp_path / "judged.yml"), str(tmp_path / "nodes.yml"))
    assert all(
        f"alertname: {line.split()[-1]}" in JUDGED + OF_NODES for line in rules.splitlines() if "- alert:" in line
    )


def test_prometheus_takes_the_lines_for_its_configuration(tmp_path: Path) -> None:
    lines = (FOLDER / FILES["scrape_config"]).read_text()
    (tmp_path / "gpuwatch.rules.yml").write_text((FOLDER / FILES["rules"]).read_text())
    for name in ("ca.crt", "gpuwatch.password"):
        (tmp_path / name).touch()
    with_tls = re.sub(r"^    # (scheme|tls_config|basic_auth):", r"    \1:", lines, flags=re.MULTILINE)
    assert with_tls.count("#") == lines.count("#") - 3
    for text in (lines, with_tls):
        (tmp_path / "prometheus.yml").write_text(text)
        promtool("check", "config", str(tmp_path / "prometheus.yml"))


def _firing(port: int) -> list[dict[str, str]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/alerts", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
    except OSError:  # it has not started yet
        return []
    return [one["labels"] for one in found["data"]["alerts"] if one["state"] == "firing"]


@pytest.mark.slow
@pytest.mark.uncounted
def test_a_real_prometheus_fires_the_alert_of_an_overshoot(driver: Driver, own_home: Path, tmp_path: Path) -> None:
    program = needs("prometheus")
    exported, served = free_port(), free_port()
    # As they are shipped, but without the minutes in between.
    rules = (FOLDER / FILES["rules"]).read_text().replace("for: 1m", "for: 0s").replace("interval: 15s", "interval: 1s")
    (tmp_path / "gpuwatch.rules.yml").write_text(rules)
    lines = (FOLDER / FILES["scrape_config"]).read_text().replace("9836", str(exported))
    fast = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
    (tmp_path / "prometheus.yml").write_text(fast + lines.replace("scrape_interval: 15s", "scrape_interval: 1s"))
    with subprocess.Popen(["sleep", "600"], env={"GPUWATCH_SHARE": "0.1"}) as training:
        driver.gpus = [Gpu(0, util_gpu=37, memory_used=20 * GIB)]
        driver.procs = [Proc(0, training.pid, memory=20 * GIB, sm=98)]
        driver.write()
        export = [GPUWATCH, "export", "--listen", f"127.0.0.1:{exported}", "--interval", "0.5"]
        flags = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{served}"]
        log = (tmp_path / "log").open("wb")
        with (
            subprocess.Popen(export, env=driver.env(), stderr=log) as exporter,
            subprocess.Popen([program, *flags], cwd=tmp_path, stdout=log, stderr=log) as prometheus,
        ):
            try:
                over = {"alertname": "GpuwatchOverDeclared", "job": "gpuwatch", "gpu": "0", "severity": "critical"}
                wait_for(
                    lambda: any(over.items() <= one.items() for one in _firing(served)),
                    (tmp_path / "log").read_text(errors="replace")[-2000:],
                )
                driver.procs, driver.gpus[0].memory_used = [], 0
                driver.write()
                wait_for(lambda: not [one for one in _firing(served) if one["alertname"] == "GpuwatchOverDeclared"])
                exporter.send_signal(signal.SIGTERM)
                assert exporter.wait(30) == 0
                client = PrometheusClient(FleetSettings(), f"http://127.0.0.1:{served}")
                wait_for(lambda: [one.trouble for one in read_fleet(client).hosts] == ["its exporter does not answer"])
            finally:
                training.kill()
                exporter.kill()
                prometheus.kill()
        log.close()
