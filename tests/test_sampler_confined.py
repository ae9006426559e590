"""Whether the sampler says that it runs in a container's PID namespace, where it may not be told of all processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.driver import Driver
from tests.sampling import eight, once


@pytest.mark.parametrize(("inode", "confined"), [(4026531836, False), (4026532555, True)])
def test_a_pid_namespace_of_its_own_is_told(driver: Driver, tmp_path: Path, inode: int, confined: bool) -> None:
    own = tmp_path / "proc/self/ns"
    own.mkdir(parents=True)
    (own / "pid").symlink_to(f"pid:[{inode}]")
    snapshot, _ = once(eight(driver).env(), "--proc", str(tmp_path / "proc"))
    assert snapshot.confined is confined
