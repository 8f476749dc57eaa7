"""What holds for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.scenes.own_places import OwnPlaces, own_places

# Speed is measured (make bench), never asserted: a busy machine must not fail a property.  Nor must
# chance: a run fails for what was changed; --hypothesis-profile=random looks for what nobody knew.
settings.register_profile("random", deadline=None, derandomize=False)
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

_OWN: pytest.StashKey[OwnPlaces] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """No test finds what the machine has of kubelets, runtimes and agents."""
    config.stash[_OWN] = own_places()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """No test pins the process in which those after it run."""
    before = os.sched_getaffinity(0)
    result = yield
    after = os.sched_getaffinity(0)
    if after != before:
        os.sched_setaffinity(0, before)
        # One that has gone offline meanwhile is missing by nature.
        assert os.sched_getaffinity(0) == after, "the test has pinned the process of the tests"
    return result


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say so where that cannot be."""
    problem = config.stash[_OWN].problem
    return f"the machine's kubelet and runtimes are not covered: {problem}" if problem else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that has left anything where only the machine's own belongs is no good one."""
    if touched := session.config.stash[_OWN].touched():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        # Also from a worker of pytest-xdist, whose exit status nobody reads.
        pytest.exit(f"a test has left in a well-known place: {', '.join(touched)}", returncode=1)


def pytest_unconfigure() -> None:
    """Nothing stays of the folder for what outlives no reboot."""
    shutil.rmtree(os.environ["PINFOLD_RUN_DIR"], ignore_errors=True)
