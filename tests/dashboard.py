"""Write the Grafana dashboard that is shipped, with Grafana's foundation SDK: `python -m tests.dashboard`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from grafana_foundation_sdk.builders import bargauge, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from gpuwatch.commands.export import FILES, FOLDER

PATH: Final = FOLDER / FILES["dashboard"]
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="$datasource")
_HOSTS: Final = '{job="$job",instance=~"$instance"}'
_GPU: Final = "{{instance}} GPU {{gpu}}"


class Panel(NamedTuple):
    """One panel: its kind, and what it asks for; `%` stands for the chosen hosts."""

    kind: Any
    title: str
    query: str
    legend: str = ""
    unit: str = "short"
    width: int = 12
    height: int = 8


def _number(title: str, query: str, unit: str = "short") -> Panel:
    return Panel(stat.Panel, title, query, unit=unit, width=4, height=4)


def _graph(title: str, query: str, legend: str, unit: str) -> Panel:
    return Panel(timeseries.Panel, title, query, legend, unit)


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Now": (
        _number("GPUs", "count(gpuwatch_gpu_up%)"),
        _number("Free GPUs", "count(gpuwatch_gpu_processes% == 0) or vector(0)"),
        _number("GPUs that do not answer", "count(gpuwatch_gpu_up% == 0) or vector(0)"),
        _number(
            "Memory in use",
            "sum(gpuwatch_gpu_memory_used_bytes%) / sum(gpuwatch_gpu_memory_total_bytes%)",
            "percentunit",
        ),
        _number("Utilization", "avg(gpuwatch_gpu_utilization_ratio%)", "percentunit"),
        _number("Age of the oldest figures", "max(time() - gpuwatch_sample_timestamp_seconds%)", "s"),
        Panel(
            table.Panel,
            "Firing alerts",
            'ALERTS{alertname=~"Gpuwatch.+",alertstate="firing",instance=~"$instance"}',
        ),
        Panel(
            bargauge.Panel,
            "Over declared",
            "sum by (user) (gpuwatch_user_over_bytes%) > 0",
            "{{user}}",
            "bytes",
        ),
    ),
    "People": (
        _graph("Memory by user", "sum by (user) (gpuwatch_user_memory_bytes%)", "{{user}}", "bytes"),
        _graph(
            "Idle memory",
            "sum by (user) (gpuwatch_user_idle_memory_bytes%) > 0",
            "{{user}}",
            "bytes",
        ),
    ),
    "GPUs": (
        _graph("Memory in use", "gpuwatch_gpu_memory_used_bytes%", _GPU, "bytes"),
        _graph("Memory left: free, minus what is promised", "gpuwatch_gpu_memory_left_bytes%", _GPU, "bytes"),
        _graph("Utilization", "gpuwatch_gpu_utilization_ratio%", _GPU, "percentunit"),
        _graph("Memory of unknown processes", "gpuwatch_gpu_memory_unknown_bytes% > 0", _GPU, "bytes"),
        _graph("Power", "gpuwatch_gpu_power_watts%", _GPU, "watt"),
        _graph("Temperature", "gpuwatch_gpu_temperature_celsius%", _GPU, "celsius"),
    ),
}


def dashboard() -> str:
    """Return the dashboard as JSON."""
    made = (
        Dashboard("gpuwatch")
        .uid("gpuwatch")
        .tags(["gpu", "gpuwatch"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_variable("job", "label_values(gpuwatch_build_info, job)"))
        .with_variable(
            _variable("instance", 'label_values(gpuwatch_build_info{job="$job"}, instance)')
            .multi(True)
            .include_all(True)
        )
    )
    for title, panels in ROWS.items():
        made = made.with_row(Row(title))
        for one in panels:
            made = made.with_panel(_panel(one))
    return str(JSONEncoder(sort_keys=True, indent=2).encode(made.build())) + "\n"


def _variable(name: str, query: str) -> QueryVariable:
    made = QueryVariable(name).datasource(_SOURCE).query(query)
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def _panel(one: Panel) -> Any:
    query = prometheus.Dataquery().expr(one.query.replace("%", _HOSTS)).legend_format(one.legend).ref_id("A")
    if one.kind is table.Panel:
        query = query.instant().format(PromQueryFormat.TABLE)
    made = one.kind().title(one.title).datasource(_SOURCE).unit(one.unit)
    return made.span(one.width).height(one.height).with_target(query)


if __name__ == "__main__":
    PATH.write_text(dashboard(), "utf-8")
