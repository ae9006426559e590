"""What NVML's codes are said to mean."""

from __future__ import annotations

import pytest

from gpuwatch.model import Health, Reason
from gpuwatch.sampler.nvml import Code, Failed, error, health, reason


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        (15, Health.LOST, "cannot be reached"),
        (16, Health.RESET, "must be reset"),
        (4, Health.DENIED, "may not open"),
        (17, Health.DENIED, "cgroups"),
        (27, Health.NOT_READY, "not ready yet"),
        (10, Health.FAILED, "did not answer"),
        (11, Health.FAILED, "interrupts"),
        (8, Health.FAILED, "power cables"),
        (999, Health.FAILED, "no reason"),
        (2, Health.MISSING, "no longer lists"),
        (4242, Health.FAILED, "NVML error 4242"),
    ],
)
def test_a_failed_gpu_is_judged_in_plain_words(code: int, expected: Health, words: str) -> None:
    found, said = health(Failed("nvmlDeviceGetPowerUsage", code))
    assert found is expected
    assert words in said
    assert "nvmlDeviceGetPowerUsage" in said
    assert str(code) in said


def test_every_code_has_words_and_a_reason() -> None:
    for code in (*range(40), 999, 4242, 2**31):
        assert error(code).startswith(f"NVML error {code}")
        assert reason(code) in Reason
    assert {reason(code) for code in (3, 13, 25, 26)} == {Reason.UNSUPPORTED}
    assert {reason(code) for code in (Code.NO_PERMISSION, Code.OPERATING_SYSTEM)} == {Reason.DENIED}
    assert {reason(code) for code in (999, 14, 6, 4242)} == {Reason.ERROR}
