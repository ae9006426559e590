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

JUDGED = """
rule_files: [rules.yml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: 'gpuwatch_user_over_bytes{job="gpuwatch",instance="lab1:9836",gpu="2",user="ada"}'
        values: '0x8 1073741824x40 0x20'
      - series: 'gpuwatch_gpu_memory_free_bytes{job="gpuwatch",instance="lab1:9836",gpu="2"}'
        values: '2x60'
      - series: 'gpuwatch_gpu_memory_used_bytes{job="gpuwatch",instance="lab1:9836",gpu="2"}'
        values: '98x60'
      - series: 'gpuwatch_gpu_up{job="gpuwatch",instance="lab1:9836",gpu="3"}'
        values: '0x60'
      - series: 'gpuwatch_user_memory_bytes{job="gpuwatch",instance="lab1:9836",gpu="2",user="ada"}'
        values: '5x60'
      - series: 'gpuwatch_user_memory_bytes{job="gpuwatch",instance="lab1:9836",gpu="3",user="ada"}'
        values: '7x60'
      - series: 'gpuwatch_user_idle_seconds{job="gpuwatch",instance="lab1:9836",gpu="2",user="ada"}'
        values: '1900x60'
      - series: 'gpuwatch_user_idle_memory_bytes{job="gpuwatch",instance="lab1:9836",gpu="2",user="ada"}'
        values: '2147483648x60'
      - series: 'gpuwatch_gpu_full_seconds{job="gpuwatch",instance="lab1:9836",gpu="2"}'
        values: '300x60'
      - series: 'gpuwatch_sample_timestamp_seconds{job="gpuwatch",instance="lab1:9836"}'
        values: '0x60'
      - series: 'gpuwatch_interval_seconds{job="gpuwatch",instance="lab1:9836"}'
        values: '1x60'
      - series: 'gpuwatch_sample_timestamp_seconds{job="gpuwatch",instance="lab3:9836"}'
        values: '0x60'
      - series: 'gpuwatch_interval_seconds{job="gpuwatch",instance="lab3:9836"}'
        values: '3600x60'
      - series: >-
          gpuwatch_gpu_alerts{job="gpuwatch",instance="lab1:9836",gpu="2",user="ada",
          rule="uses more than declared",severity="critical"}
        values: '_x24 1x24 stale'
      - series: 'gpuwatch_user_over_bytes{job="gpuwatch",instance="lab1:9836",gpu="2",user="eve"}'
        values: '1073741824x60'
      - series: >-
          gpuwatch_gpu_alerts{job="gpuwatch",instance="lab1:9836",gpu="2",user="eve",
          rule="uses more than declared",severity="note"}
        values: '1x60'
      - series: 'gpuwatch_gpu_up{job="gpuwatch",instance="lab1:9836",uuid="GPU-4",gpu="4"}'
        values: '0x60'
      - series: >-
          gpuwatch_gpu_alerts{job="gpuwatch",instance="lab1:9836",uuid="GPU-4",gpu="4",
          rule="gpu health",severity="warning"}
        values: '1x60'
      - series: 'gpuwatch_gpu_full_seconds{job="gpuwatch",instance="lab1:9836",uuid="GPU-5",gpu="5"}'
        values: '100x60'
      - series: >-
          gpuwatch_gpu_alerts{job="gpuwatch",instance="lab1:9836",uuid="GPU-5",gpu="5",
          rule="time to full",severity="critical"}
        values: '1x60'
      - series: 'gpuwatch_gpu_memory_declared_bytes{job="gpuwatch",instance="lab1:9836",uuid="GPU-5",gpu="5"}'
        values: '90000000000x60'
      - series: 'gpuwatch_gpu_memory_total_bytes{job="gpuwatch",instance="lab1:9836",uuid="GPU-5",gpu="5"}'
        values: '80000000000x60'
      - series: >-
          gpuwatch_gpu_alerts{job="gpuwatch",instance="lab1:9836",uuid="GPU-5",gpu="5",
          rule="overbooked",severity="note"}
        values: '1x60'
      - series: 'gpuwatch_driver_up{job="gpuwatch",instance="lab4:9836"}'
        values: '0x60'
      - series: 'up{job="gpuwatch",instance="lab4:9836"}'
        values: '1x60'
      - series: 'up{job="gpuwatch",instance="lab2:9836"}'
        values: '0x60'
      - series: 'gpuwatch_gpu_memory_declared_bytes{job="gpuwatch",instance="lab1:9836",gpu="2"}'
        values: '90000000000x60'
      - series: 'gpuwatch_gpu_memory_total_bytes{job="gpuwatch",instance="lab1:9836",gpu="2"}'
        values: '80000000000x60'
    promql_expr_test:
      - expr: gpuwatch:user_memory:bytes
        eval_time: 5m
        exp_samples: [{labels: 'gpuwatch:user_memory:bytes{job="gpuwatch",instance="lab1:9836",user="ada"}', value: 12}]
    alert_rule_test:
      - {alertname: GpuwatchOvershoot, eval_time: 2m}
      - alertname: GpuwatchOvershoot
        eval_time: 5m
        exp_alerts:
          - exp_labels: {severity: warning, job: gpuwatch, instance: 'lab1:9836', gpu: 2, user: ada}
            exp_annotations: {summary: 'ada holds 1GiB more than declared on GPU 2 of lab1:9836'}
      - alertname: GpuwatchOvershoot
        eval_time: 9m
        exp_alerts:
          - exp_labels: {severity: critical, job: gpuwatch, instance: 'lab1:9836', gpu: 2, user: ada}
            exp_annotations: {summary: 'ada holds 1GiB more than declared on GPU 2 of lab1:9836'}
      - {alertname: GpuwatchOvershoot, eval_time: 14m}
      - alertname: GpuwatchNearLimit
        eval_time: 5m
        exp_alerts:
          - exp_labels: {severity: critical, job: gpuwatch, instance: 'lab1:9836', gpu: 2}
            exp_annotations: {summary: 'GPU 2 of lab1:9836 is nearly full: 2% free'}
      - alertname: GpuwatchGpuLost
        eval_time: 5m
        exp_alerts:
          - exp_labels: {severity: critical, job: gpuwatch, instance: 'lab1:9836', gpu: 3}
            exp_annotations: {summary: 'GPU 3 of lab1:9836 does not answer'}
          - exp_labels: {severity: warning, job: gpuwatch, instance: 'lab1:9836', uuid: GPU-4, gpu: 4}
            exp_annotations: {summary: 'GPU 4 of lab1:9836 cannot be read'}
      - alertname: GpuwatchIdleHeld
        eval_time: 5m
        exp_alerts:
          - exp_labels: {severity: warning, job: gpuwatch, instance: 'lab1:9836', gpu: 2, user: ada}
            exp_annotations:
              summary: 'ada has held 2GiB of GPU 2 of lab1:9836 for half an hour without using it'
      - alertname: GpuwatchFillsUp
        eval_time: 5m
        exp_alerts:
          - exp_labels: {severity: warning, job: gpuwatch, instance: 'lab1:9836', gpu: 2}
            exp_annotations: {summary: 'GPU 2 of lab1:9836 is full in 5m 0s'}
          - exp_labels: {severity: critical, job: gpuwatch, instance: 'lab1:9836', uuid: GPU-5, gpu: 5}
            exp_annotations: {summary: 'GPU 5 of lab1:9836 is full in 1m 40s'}
      - alertname: GpuwatchDataTooOld
        eval_time: 5m
        exp_alerts:
          - exp_labels: {severity: critical, job: gpuwatch, instance: 'lab1:9836'}
            exp_annotations: {summary: 'the figures of lab1:9836 are 5m 0s old'}
      - alertname: GpuwatchDriverDown
        eval_time: 5m
        exp_alerts:
          - exp_labels: {severity: critical, job: gpuwatch, instance: 'lab4:9836'}
            exp_annotations: {summary: 'the driver of lab4:9836 does not answer'}
      - alertname: GpuwatchHostDown
        eval_time: 5m
        exp_alerts:
          - exp_labels: {severity: critical, job: gpuwatch, instance: 'lab2:9836'}
            exp_annotations: {summary: 'lab2:9836 does not answer'}
      - alertname: GpuwatchOverbooked
        eval_time: 12m
        exp_alerts:
          - exp_labels: {severity: warning, job: gpuwatch, instance: 'lab1:9836', gpu: 2}
            exp_annotations: {summary: 'GPU 2 of lab1:9836 is overbooked: 83.82GiB are declared'}
"""

OF_NODES = """
rule_files: [rules.yml]
evaluation_interval: 2m
tests:
  - interval: 2m
    input_series:
      - series: 'up{job="nodes",instance="lab5:9100"}'
        values: '1x2 0x800'
      - series: 'gpuwatch_driver_up{job="nodes",instance="lab5:9100"}'
        values: '1x2 stale'
      - series: 'up{job="nodes",instance="lab6:9100"}'
        values: '1x800'
      - series: 'gpuwatch_driver_up{job="nodes",instance="lab6:9100"}'
        values: '1x2 stale'
      - series: 'up{job="nodes",instance="without-gpus:9100"}'
        values: '1x2 0x800'
      - series: 'gpuwatch:host_driver_up:bool{job="nodes",instance="lab5:9100"}'
        values: '1x2 stale'
      - series: 'gpuwatch:host_driver_up:bool{job="nodes",instance="lab6:9100"}'
        values: '1x2 stale'
      - series: 'gpuwatch:host_driver_up:bool{job="nodes",instance="lab7:9100"}'
        values: '1x20'
      - series: 'up{job="nodes",instance="lab7:9100"}'
        values: '1x20'
    promql_expr_test:
      - expr: QUERY
        eval_time: 20m
        exp_samples:
          - {labels: 'up{job="nodes",instance="lab5:9100"}', value: 0}
          - {labels: 'up{job="nodes",instance="lab6:9100"}', value: 1}
    alert_rule_test:
      - {alertname: GpuwatchHostDown, eval_time: 4m}
      - {alertname: GpuwatchNoFigures, eval_time: 4m}
      - &down
        alertname: GpuwatchHostDown
        eval_time: 20m
        exp_alerts:
          - exp_labels: {severity: critical, job: nodes, instance: 'lab5:9100'}
            exp_annotations: {summary: 'lab5:9100 does not answer'}
      - {<<: *down, eval_time: 1490m}
      - alertname: GpuwatchNoFigures
        eval_time: 20m
        exp_alerts:
          - exp_labels: {severity: warning, job: nodes, instance: 'lab6:9100'}
            exp_annotations: {summary: 'lab6:9100 has no figures of gpuwatch any more: it has ended there'}
      - {alertname: GpuwatchNoFigures, eval_time: 1490m}
"""
"""Hosts whose figures node_exporter serves: one is down, and gpuwatch has ended on another one."""


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
                over = {"alertname": "GpuwatchOvershoot", "job": "gpuwatch", "gpu": "0", "severity": "critical"}
                wait_for(
                    lambda: any(over.items() <= one.items() for one in _firing(served)),
                    (tmp_path / "log").read_text(errors="replace")[-2000:],
                )
                driver.procs, driver.gpus[0].memory_used = [], 0
                driver.write()
                wait_for(lambda: not [one for one in _firing(served) if one["alertname"] == "GpuwatchOvershoot"])
                exporter.send_signal(signal.SIGTERM)
                assert exporter.wait(30) == 0
                client = PrometheusClient(FleetSettings(), f"http://127.0.0.1:{served}")
                wait_for(lambda: [one.trouble for one in read_fleet(client).hosts] == ["its exporter does not answer"])
            finally:
                training.kill()
                exporter.kill()
                prometheus.kill()
        log.close()
