"""What a container has beside its CPUs, as lines."""

from __future__ import annotations

from pinfold.documents.records import MemoryBlock
from pinfold.render.plan_view import extras


def test_blocks_of_nothing_are_not_said() -> None:
    """An init container's memory is used again by the next one, and counts there."""
    blocks = [
        MemoryBlock(type="memory", size=0, numa_nodes=(0,)),
        MemoryBlock(type="memory", size=1 << 30, numa_nodes=(1,)),
        MemoryBlock(type="hugepages-2Mi", size=0, numa_nodes=(1,)),
    ]
    assert list(extras(blocks, {})) == ["memory 1 GiB on NUMA node 1"]
    assert list(extras(blocks[:1], {})) == []
