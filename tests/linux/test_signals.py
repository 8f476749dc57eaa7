"""Signals reach the process that is meant, or nobody."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from pinfold.linux.processes import began
from pinfold.linux.signals import open_process, send_signal
from pinfold.ports.errors import NoRoomError
from tests.scenes.process_world import no_files


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def start_of(process: subprocess.Popen[bytes]) -> int:
    start = began(process.pid)
    assert start is not None
    return start


def test_the_process_that_is_meant_hears_it(child: subprocess.Popen[bytes]) -> None:
    send_signal(child.pid, start_of(child), signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM


def test_whoever_has_its_pid_by_now_does_not(child: subprocess.Popen[bytes]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for start in (start_of(child) - 1, start_of(child) + 1):
        assert open_process(child.pid, start) is None
        send_signal(child.pid, start, signal.SIGKILL)
    # A signal of its own comes after all that were sent before.
    send_signal(child.pid, start_of(child), signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_that_is_gone_is_no_error(child: subprocess.Popen[bytes]) -> None:
    start = start_of(child)
    child.kill()
    child.wait()
    assert open_process(child.pid, start) is None
    send_signal(child.pid, start, signal.SIGKILL)
    assert open_process(2**40, 1) is None


def test_what_cannot_be_sent_is_said(child: subprocess.Popen[bytes]) -> None:
    start = start_of(child)
    with pytest.raises(OSError, match="Invalid argument"):
        send_signal(child.pid, start, 999)
    with no_files(), pytest.raises(NoRoomError, match="Too many open files"):
        send_signal(child.pid, start, signal.SIGKILL)
    assert child.poll() is None
