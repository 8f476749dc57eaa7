"""What the tests of whole programs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenes.containerd_node import ContainerdNode, containerd_node


@pytest.fixture(scope="module")
def containerd() -> Iterator[ContainerdNode]:
    """A containerd of its own for the tests of one file."""
    with containerd_node() as node:
        yield node


@pytest.fixture
def fresh_containerd() -> Iterator[ContainerdNode]:
    """A containerd for one test, which may kill it."""
    with containerd_node() as node:
        yield node
