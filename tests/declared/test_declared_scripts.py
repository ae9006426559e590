"""What processes declared in scripts as people write them: real processes on the fake driver, told by `explain`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpuwatch.model.snapshot import Confidence
from tests.declared.tables import Case, cases
from tests.support.declared import Explainer, gpu, said

pytestmark = pytest.mark.slow  # real processes


@pytest.fixture
def explain(tmp_path: Path) -> Explainer:
    return Explainer(tmp_path, [gpu(index) for index in range(8)])


@cases("declared/training")
def test_a_script_as_people_write_them(explain: Explainer, case: Case) -> None:
    """Ranks, what is called, conditions, and code that is not read.

    `limits` are in GiB by index, on eight GPUs of 80; `why` is a declaration's, by its channel; `words` stand in what
    `explain` tells while `held` is held, and `absent` do not.
    """
    explain.write(**case.get("files", {}))
    argv, environ, expect = case.get("argv", ()), case.get("environ"), case["expect"]
    if "limits" in expect:
        declared = explain.declared(*argv, environ=environ)
        assert explain.limits(declared) == {int(index): size for index, size in expect["limits"].items()}
        for channel, why in expect.get("why", {}).items():
            assert said(declared, channel).why == why
    if "held" in case:
        text = explain.text(*argv, environ=environ, held={int(index): size for index, size in case["held"].items()})
        assert [words for words in expect.get("words", ()) if words not in text] == []
        assert [words for words in expect.get("absent", ()) if words in text] == []


def test_a_limit_of_mps_is_in_effect_only_where_its_daemon_listens(explain: Explainer, tmp_path: Path) -> None:
    explain.write(train="import torch\n")
    control = tmp_path / "mps" / "control"
    control.parent.mkdir()
    environ = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G", "CUDA_MPS_PIPE_DIRECTORY": str(control.parent)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(control))
        daemon.listen()
        served = explain.declared(environ=environ)
    assert control.exists()
    assert explain.limits(served) == {0: 1}
    assert said(served, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").confidence is Confidence.CERTAIN
    text = explain.text(environ=environ, held={0: 30})
    assert "1.0 GiB on GPU 0 if an MPS daemon serves it" in text
    assert "more than the allowance" not in text
