"""What the tests against Kubernetes itself share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenes.control_plane import ControlPlane, control_plane
from tests.scenes.real_quota import RealQuota


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane for the whole run; skips where there can be none."""
    with control_plane(tmp_path_factory.mktemp("control-plane")) as found:
        yield found


@pytest.fixture(scope="module")
def deployed(control: ControlPlane) -> Iterator[RealQuota]:
    """What deploy/kubernetes/quota makes is in it, for the tests of one file; as yet no replica."""
    found = RealQuota(control)
    found.deploy("fail-closed")
    try:
        yield found
    finally:
        found.remove()
