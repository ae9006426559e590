"""Metrics: each figure in its base unit, what is missing is absent, and hostile names stay labels."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from gpuwatch.alerts.alert import RENAMED, Severity
from gpuwatch.alerts.rules.health import HEALTH
from gpuwatch.alerts.rules.memory import FULL, MEMORY
from gpuwatch.alerts.rules.shares import OVERBOOKED, OVERSHOOT
from gpuwatch.commands.export import FILES, FOLDER
from gpuwatch.export.metrics import _GPU, ALIASES, GROUPS
from gpuwatch.history.history import History
from gpuwatch.model.fields import GPU
from gpuwatch.model.snapshot import Health, Instance, Memory, Promise, Reason, Xid
from gpuwatch.monitor import Frame
from tests.dashboard import dashboard
from tests.support.builders import GIB, declares, gpu, holding, memory, process, snapshot, uid
from tests.support.prometheus import RECEIVED, exporter, metrics, promtool, text_of
from tests.support.screen import alert

UUID = gpu(0).uuid
CARD = {"uuid": UUID, "gpu": "0", "name": "NVIDIA H100 80GB HBM3"}


def test_each_figure_of_a_gpu_is_exported_but_for_these() -> None:
    """They are labels or no numbers, follow from others, are counters, or are read for the screen."""
    left_out = {"gpu", "name", "state", "watts", "mem_percent", "free_percent", "power_percent", "ecc"}
    left_out |= {f"{link}_{way}" for link in ("pcie", "nvlink") for way in ("rx", "tx")}
    assert GPU.keys() ^ _GPU.keys() == left_out


def test_figures_are_in_base_units_and_by_gpu() -> None:
    found = metrics(exporter(snapshot([gpu(0, holdings=[holding(7, 20)], memory_clock=2619, fan=40)])))
    assert found["gpuwatch_gpu_memory_used_bytes"] == [(CARD, 20 * GIB)]
    assert found["gpuwatch_gpu_utilization_ratio"] == [(CARD, 0.5)]
    assert found["gpuwatch_gpu_fan_speed_ratio"] == [(CARD, 0.4)]
    assert found["gpuwatch_gpu_memory_clock_hertz"] == [(CARD, 2.619e9)]
    assert found["gpuwatch_gpu_power_watts"] == [(CARD, 310.0)]
    assert found["gpuwatch_gpu_up"] == [(CARD, 1.0)]
    assert found["gpuwatch_gpu_health"] == [({**CARD, "state": "ok"}, 1.0)]
    assert found["gpuwatch_sample_age_seconds"] == [({}, 0.5)]
    assert found["gpuwatch_build_info"][0][0].items() >= {"driver": "580.95.05", "cuda": "13.0"}.items()


def test_names_of_other_exporters_have_their_units_and_labels() -> None:
    shown = snapshot([gpu(0, used_gib=20, utilization=50, xids=(Xid(code=31, last=5.0), Xid(code=79, last=9.0)))])
    found = metrics(exporter(shown))
    assert found["nvidia_smi_memory_used_bytes"] == [({"uuid": UUID.removeprefix("GPU-")}, 20 * GIB)]
    dcgm = {"gpu": "0", "UUID": UUID, "device": "nvidia0", "Hostname": "box3"}
    assert found["DCGM_FI_DEV_FB_USED"] == [(dcgm, 20 * 1024)]
    assert found["DCGM_FI_DEV_GPU_UTIL"] == [(dcgm, 50)]
    assert found["DCGM_FI_DEV_XID_ERRORS"] == [(dcgm, 79)]
    assert found["gpuwatch_gpu_xid_errors_total"] == [({**CARD, "xid": "31"}, 1), ({**CARD, "xid": "79"}, 1)]
    assert not [name for name in metrics(exporter(shown, names="own")) if not name.startswith("gpuwatch_")]


def test_each_name_of_another_exporter_has_its_figure_in_its_unit() -> None:
    """As docs/METRICS.md of nvidia_gpu_exporter and default-counters.csv of DCGM's exporter have them."""
    sizes = Memory(total=80 * GIB, used=20 * GIB, free=59 * GIB, reserved=1 * GIB)
    card = gpu(7, memory=sizes, encoder=3, decoder=4, utilization=50, power=310.5, fan=40, pstate=2)
    found = metrics(exporter(snapshot([card])))
    named = {name: one[0][1] for name, one in found.items() if name.startswith(("nvidia_smi_", "DCGM_"))}
    assert named == pytest.approx(
        {
            "nvidia_smi_memory_used_bytes": 20 * GIB,
            "nvidia_smi_memory_free_bytes": 59 * GIB,
            "nvidia_smi_memory_total_bytes": 80 * GIB,
            "nvidia_smi_memory_reserved_bytes": 1 * GIB,
            "nvidia_smi_utilization_gpu_ratio": 0.5,
            "nvidia_smi_utilization_memory_ratio": 0.2,
            "nvidia_smi_temperature_gpu": 55,
            "nvidia_smi_power_draw_watts": 310.5,
            "nvidia_smi_enforced_power_limit_watts": 700,
            "nvidia_smi_fan_speed_ratio": 0.4,
            "nvidia_smi_clocks_current_sm_clock_hz": 1.98e9,
            "nvidia_smi_clocks_current_memory_clock_hz": 2.619e9,
            "nvidia_smi_pstate": 2,
            "nvidia_smi_index": 7,
            "nvidia_smi_gpu_info": 1,
            "DCGM_FI_DEV_GPU_UTIL": 50,
            "DCGM_FI_DEV_MEM_COPY_UTIL": 20,
            "DCGM_FI_DEV_ENC_UTIL": 3,
            "DCGM_FI_DEV_DEC_UTIL": 4,
            "DCGM_FI_DEV_FB_USED": 20 * 1024,
            "DCGM_FI_DEV_FB_FREE": 59 * 1024,
            "DCGM_FI_DEV_FB_RESERVED": 1024,
            "DCGM_FI_DEV_GPU_TEMP": 55,
            "DCGM_FI_DEV_POWER_USAGE": 310.5,
            "DCGM_FI_DEV_SM_CLOCK": 1980,
            "DCGM_FI_DEV_MEM_CLOCK": 2619,
        }
    )


def test_what_is_not_known_is_absent_and_never_zero() -> None:
    card = gpu(
        0,
        holdings=[holding(7, 20), holding(8, memory=Reason.NO_SAMPLE)],
        power=Reason.UNSUPPORTED,
        holdings_note="torn",
    )
    found = metrics(exporter(snapshot([replace(card, unattributed=Reason.NO_SAMPLE)])))
    for missing in ("power_watts", "memory_unknown_bytes", "processes", "full_seconds"):
        assert f"gpuwatch_gpu_{missing}" not in found
    assert "gpuwatch_user_memory_bytes" not in found, "a sum without a part of it is none"
    assert "gpuwatch_user_declared_bytes" not in found
    assert found["gpuwatch_gpu_power_limit_watts"] == [(CARD, 700.0)]


@pytest.mark.parametrize(("health", "age"), [(Health.LOST, 0.0), (Health.OK, 60.0)])
def test_a_gpu_that_does_not_answer_has_its_state_and_age_alone(health: Health, age: float) -> None:
    lost = gpu(1, holdings=[holding(8, 3)], health=health)
    shown = snapshot([lost])
    found = metrics(exporter(shown, age=age))
    assert found["gpuwatch_gpu_up"][0][1] == (health is Health.OK)
    assert found["gpuwatch_gpu_sample_age_seconds"][0][1] == age
    assert found["gpuwatch_gpu_failed_samples_total"][0][1] == (health is not Health.OK)
    assert not [name for name in found if "memory" in name or name.startswith("gpuwatch_user")]


def test_shares_of_a_user_add_up_and_an_overshoot_is_what_is_beyond_them() -> None:
    people = [
        process(7, "ada", declared=declares(0, 10 * GIB)),
        process(8, "ada", declared=declares(0, 8 * GIB)),
        process(9, "ben"),
    ]
    promised = (
        Promise(user="ada", uid=uid("ada"), bytes=2 * GIB),
        Promise(user="cyn", uid=uid("cyn"), bytes=GIB, reserved=5.0),
    )
    card = gpu(0, holdings=[holding(7, 15), holding(8, 6), holding(9, 5, sm=0)], promises=promised, promised=3 * GIB)
    found = metrics(exporter(snapshot([card], people), seconds=90))

    def by_user(name: str) -> dict[str, float]:
        return {labels["user"]: value for labels, value in found[f"gpuwatch_user_{name}"]}

    assert by_user("memory_bytes") == {"ada": 21 * GIB, "ben": 5 * GIB, "cyn": 0}
    assert by_user("declared_bytes") == {"ada": 18 * GIB}
    assert by_user("over_bytes") == {"ada": 5 * GIB}
    assert by_user("promised_bytes") == {"ada": 2 * GIB, "ben": 0, "cyn": GIB}
    assert by_user("idle_seconds") == {"ben": pytest.approx(90, abs=2)}
    assert by_user("idle_memory_bytes") == {"ada": 0, "ben": 5 * GIB, "cyn": 0}
    assert by_user("processes") == {"ada": 2, "ben": 1, "cyn": 0}
    assert found["gpuwatch_gpu_memory_declared_bytes"] == [(CARD, 18 * GIB)]
    assert found["gpuwatch_gpu_memory_left_bytes"] == [(CARD, card.memory.free - 3 * GIB)]  # type: ignore[operator]


def test_two_uids_of_one_name_are_one_user_whose_figures_are_added_up() -> None:
    people = [process(7, "ada", declared=declares(0, 10 * GIB)), process(8, "ada", uid=2002), process(9, "ben")]
    promised = (Promise(user="ada", uid=uid("ada"), bytes=2 * GIB), Promise(user="ada", uid=3003, bytes=GIB))
    card = gpu(0, holdings=[holding(7, 15), holding(8, 6), holding(9, 5)], promises=promised, promised=3 * GIB)
    found = metrics(exporter(snapshot([card], people)))
    ada = {**CARD, "user": "ada"}
    for name, amount in {"memory": 21, "declared": 10, "promised": 3, "over": 5}.items():
        assert [one for one in found[f"gpuwatch_user_{name}_bytes"] if one[0] == ada] == [(ada, amount * GIB)]
    assert (ada, 2) in found["gpuwatch_user_processes"]
    unknown = replace(card, holdings=(holding(7, 15), holding(8, memory=Reason.DENIED), holding(9, 5)))
    found = metrics(exporter(snapshot([unknown], people)))
    assert found["gpuwatch_user_memory_bytes"] == [({**CARD, "user": "ben"}, 5 * GIB)]


def test_an_instance_has_metrics_of_its_own_so_that_a_sum_over_gpus_counts_nothing_twice() -> None:
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    one = Instance(uuid="MIG-7", name=name, gpu_instance=7, compute_instance=0, memory=memory(4, total=10 * GIB))
    found = metrics(exporter(snapshot([gpu(0, mig=True, used_gib=4, instances=(one,))])))
    labels = {**CARD, "mig_uuid": "MIG-7", "mig_instance": "7", "mig_profile": "1g.10gb"}
    assert found["gpuwatch_mig_memory_used_bytes"] == [(labels, 4 * GIB)]
    assert found["gpuwatch_gpu_memory_used_bytes"] == [(CARD, 4 * GIB)]


def test_processes_have_metrics_only_where_they_are_asked_for_the_largest_first() -> None:
    shown = snapshot([gpu(0, holdings=[holding(7, 5), holding(8, 20), holding(9, 10)])])
    assert not [name for name in metrics(exporter(shown)) if name.startswith("gpuwatch_process")]
    found = metrics(exporter(shown, per_process=2))
    assert [labels["pid"] for labels, _ in found["gpuwatch_process_memory_bytes"]] == ["8", "9"]
    assert found["gpuwatch_processes_left_out"] == [({}, 1)]


def test_sixty_people_with_hostile_names_leave_nothing_behind() -> None:
    names = ['"}\n# HELP x', "\\", "ünïcödé", "a" * 64, *(f"user{number}" for number in range(56))]
    card = gpu(0, holdings=[holding(100 + number, 0.5) for number in range(60)])
    people = [process(100 + number, name, uid=2000 + number) for number, name in enumerate(names)]
    made = exporter(snapshot([card], people), per_process=50)
    found = metrics(made)
    assert sorted(labels["user"] for labels, _ in found["gpuwatch_user_memory_bytes"]) == sorted(names)
    promtool("check", "metrics", content=text_of(made))
    assert len(metrics(made)["gpuwatch_user_memory_bytes"]) == 60
    empty = exporter(snapshot([gpu(0)]))
    assert "gpuwatch_user_memory_bytes" not in metrics(empty)


def test_promtool_finds_no_fault_with_any_metric() -> None:
    card = gpu(0, holdings=[holding(7, 20)], throttle=("power cap",), xids=(Xid(code=79),), fan=30)
    assert not promtool("check", "metrics", content=text_of(exporter(snapshot([card]), seconds=3, per_process=5)))


def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    known = {metric.name for group in (*GROUPS, *ALIASES) for metric in group.metrics}
    for name in ("rules", "dashboard"):
        asked = set(re.findall(r"\bgpuwatch_[a-z_]+", (FOLDER / FILES[name]).read_text()))
        assert len(asked) > 5
        assert asked <= known


def test_rules_of_the_severity_of_an_alert_name_alerts_that_there_are() -> None:
    named = re.findall(r'rule=~?"([^"]+)"', (FOLDER / FILES["rules"]).read_text())
    by_name = {RENAMED.get(name, name) for names in named for name in names.split("|")}
    assert by_name == {FULL, OVERSHOOT, HEALTH, OVERBOOKED}


def test_an_alert_about_a_gpu_has_the_severity_of_the_dashboard_and_its_owner() -> None:
    shown = snapshot([gpu(0, holdings=[holding(7, 20)])])
    key = shown.gpus[0].key
    over = alert(0, Severity.NOTE, rule=OVERSHOOT, subject=f"7 1 {key}", owners=("ada",))
    near = alert(0, rule=MEMORY, owners=("ada", "ben"))
    made = exporter(shown)
    made.take(Frame(shown, RECEIVED, History().view, (over, near, alert(gpu=""))))
    assert metrics(made)["gpuwatch_gpu_alerts"] == [
        ({**CARD, "user": "ada", "rule": OVERSHOOT, "severity": "note"}, 1),
        ({**CARD, "user": "", "rule": MEMORY, "severity": "critical"}, 1),
    ]


def test_the_dashboard_is_the_one_that_is_made() -> None:
    assert (FOLDER / FILES["dashboard"]).read_text() == dashboard()


def test_of_several_limits_of_one_process_the_worst_is_the_overshoot() -> None:
    own, shared = declares(0, 8 * GIB), declares(0, 10 * GIB, scope="container 3f9a1c")
    limits = (*own.limits, replace(shared.limits[0], declaration=1))
    both = replace(own, declarations=(*own.declarations, *shared.declarations), limits=limits)
    card = gpu(0, holdings=[holding(7, 20)])
    found = metrics(exporter(snapshot([card], [process(7, declared=both)])))
    assert found["gpuwatch_user_over_bytes"] == [({**CARD, "user": "ada"}, 12 * GIB)]


def test_a_list_that_is_wrong_is_no_figure_of_a_user() -> None:
    wrong = gpu(0, used_gib=20, holdings=[holding(7, 400)], unreliable=True)
    found = metrics(exporter(snapshot([wrong]), per_process=5))
    assert not [name for name in found if name.startswith(("gpuwatch_user", "gpuwatch_process_"))]
    torn = gpu(0, holdings=[holding(7, 4, sm=Reason.UNSUPPORTED)], holdings_note="torn")
    found = metrics(exporter(snapshot([torn])))
    missing = {"memory_bytes", "processes", "idle_memory_bytes", "idle_seconds"}
    assert not missing & {name.removeprefix("gpuwatch_user_") for name in found}


def test_no_series_stands_twice_in_a_scrape() -> None:
    """One process on two MIG instances of a GPU, and two GPUs whose UUID is not known."""
    parts = [holding(7, 1, gpu_instance=7, compute_instance=0), holding(7, 2, gpu_instance=8, compute_instance=0)]
    shown = snapshot([gpu(0, mig=True, holdings=parts), gpu(1, uuid=""), gpu(2, uuid="")])
    lines = [line.rpartition(" ")[0] for line in text_of(exporter(shown, per_process=5)).splitlines() if line[0] != "#"]
    assert len(lines) == len({*lines})
