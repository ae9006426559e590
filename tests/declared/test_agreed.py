"""Shares that people agreed on: whose they are, of which GPUs, and who counts together."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.declared.facts import Candidate, Facts, GpuFacts, Share
from gpuwatch.declared.resolver import agreed_candidates
from gpuwatch.model.snapshot import Basis, Kind, Margin

GIB = 1024**3
GPUS = tuple(
    GpuFacts(index=index, uuid=uuid, total=40 * GIB)
    for index, uuid in enumerate(("GPU-aaaa0001", "GPU-bbbb0002", "GPU-bbcc0003"))
)


def agreed(*shares: Share, **changes: Any) -> list[Candidate]:
    """Return the candidates of a process of ada's under some shares."""
    known: dict[str, Any] = {"pid": 1, "uid": 1001, "user": "ada", "argv": ("python", "train.py", "--epochs", "9")}
    return agreed_candidates(Facts(shares=shares, **{**known, **changes}), GPUS)


@pytest.mark.parametrize(
    ("share", "matches"),
    [
        (Share(user="ada", share=0.4), True),
        (Share(user="1001", share=0.4), True),
        (Share(user="ben", share=0.4), False),
        (Share(user="100", share=0.4), False),
        (Share(share=0.4), True),
        (Share(command=r"train\.py", share=0.4), True),
        (Share(command="train.*--epochs", share=0.4), True),
        (Share(command="^train", share=0.4), False),
        (Share(user="ada", command="serve", share=0.4), False),
    ],
)
def test_a_share_is_about_a_user_a_command_or_both(share: Share, matches: bool) -> None:
    assert bool(agreed(share)) is matches


def test_a_process_whose_owner_is_not_known_is_nobodys() -> None:
    assert agreed(Share(user="ada", share=0.4), user="", uid=None) == []
    assert len(agreed(Share(share=0.4), user="", uid=None)) == 3


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((), ["GPU-aaaa0001", "GPU-bbbb0002", "GPU-bbcc0003"]),
        ((2,), ["GPU-bbcc0003"]),
        ((2, 0, 2), ["GPU-aaaa0001", "GPU-bbcc0003"]),
        (("GPU-bbc",), ["GPU-bbcc0003"]),
        (("GPU-bb",), []),
        (("GPU-x", 7), []),
    ],
)
def test_a_share_is_of_some_gpus(gpus: tuple[int | str, ...], expected: list[str]) -> None:
    assert [one.device for one in agreed(Share(user="ada", gpus=gpus, share=0.4))] == expected


def test_a_share_is_a_grant_with_its_place_in_the_file() -> None:
    (one,) = agreed(Share(user="ada", gpus=(2,), share=0.4, where="~/gpuwatch.toml", line=3))
    assert (one.kind, one.basis, one.value, one.framework) == (Kind.GRANT, Basis.TOTAL, 0.4, "")
    assert (one.where, one.line, one.text) == ("~/gpuwatch.toml", 3, "share = 0.4")
    assert (one.scope, one.margin) == ("share of ada on GPU 2", Margin.FRAMEWORK)
    (one,) = agreed(Share(user="ada", gpus=(0,), memory=20 * GIB))
    assert (one.basis, one.value, one.text) == (Basis.BYTES, 20 * GIB, "memory = 20.0 GiB")


@pytest.mark.parametrize(
    ("share", "person", "scope"),
    [
        (Share(share=0.5, gpus=(0,)), {}, "share of ada on GPU 0"),
        (Share(command="train", share=0.2, gpus=(0,)), {}, "share of ada for train on GPU 0"),
        (Share(share=0.5, gpus=(0,)), {"user": "ben", "uid": 1002}, "share of ben on GPU 0"),
        (Share(share=0.5, gpus=(0,)), {"user": "", "uid": 1003}, "share of 1003 on GPU 0"),
    ],
)
def test_processes_count_together_by_person_and_table(share: Share, person: dict[str, Any], scope: str) -> None:
    assert [candidate.scope for candidate in agreed(share, **person)] == [scope]


def test_of_one_scope_the_least_comes_last_and_so_counts() -> None:
    own = Share(user="ada", share=0.8, gpus=(0,))
    ceiling = Share(user="ada", memory=10 * GIB, gpus=(0,), ceiling=True)
    for shares in ((own, ceiling), (ceiling, own)):
        assert [candidate.text for candidate in agreed(*shares)] == ["share = 0.8", "ceiling, memory = 10.0 GiB"]


def test_foreign_text_is_cleaned() -> None:
    (candidate,) = agreed(Share(command="t.*\x1b?rain", share=0.4, gpus=(0,), where="\x1b[2J"), user="a\x07da")
    assert candidate.scope.isprintable()
    assert candidate.where.isprintable()


def test_a_long_command_line_is_searched_at_its_start() -> None:
    share = Share(command="needle", share=0.4, gpus=(0,))
    assert agreed(share, argv=("x" * 4000, "needle"))
    assert not agreed(share, argv=("x" * 5000, "needle"))
