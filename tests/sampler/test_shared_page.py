"""The page on which the sampler says where it is."""

from __future__ import annotations

import os
import time

import pytest

from gpuwatch.sampler.shared_page import SharedPage


def test_the_parent_sees_the_call_that_the_child_is_in_and_which_gpu_it_is_about() -> None:
    parent = SharedPage.create()
    child = SharedPage(os.dup(parent.fd))
    assert parent.read() is None
    before = time.monotonic()
    uuid, bus_id = "GPU-\ufffd" + "x" * 91, "00000000:1B:00.0"
    child.begin_call(2, "nvmlDeviceGetName", 7, uuid.encode(), bus_id.encode())
    seen = parent.read()
    assert seen is not None
    assert (seen.gpu, seen.call, seen.listed, seen.uuid, seen.bus_id) == (2, "nvmlDeviceGetName", 7, uuid, bus_id)
    assert before <= seen.started <= time.monotonic()
    child.begin_call(-1, "nvmlEventSetWait_v2")
    seen = parent.read()
    assert seen is not None
    assert (seen.gpu, seen.listed, seen.uuid, seen.bus_id) == (-1, 0, "", "")
    child.end_call()
    assert parent.read() is None
    assert child.calls == 2
    for page in (parent, child):
        page.close()


def test_a_closed_page_is_quiet_and_what_is_none_is_refused() -> None:
    page = SharedPage.create()
    page.begin_call(0, "nvmlInit_v2")
    page.close()
    page.close()
    assert page.read() is None
    readable, writable = os.pipe()
    with pytest.raises((OSError, ValueError)):
        SharedPage(readable)
    os.close(readable)
    os.close(writable)
