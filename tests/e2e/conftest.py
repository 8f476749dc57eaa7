"""What the tests of whole programs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.scenes.chromium import chromium
from tests.scenes.containerd_node import ContainerdNode, containerd_node
from tests.scenes.scripted_page import PageServer


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium for the tests of one file."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def server() -> Iterator[PageServer]:
    """Serves the page, and tells it what a test says."""
    with PageServer().running() as server:
        yield server
