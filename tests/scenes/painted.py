"""What a scene says of each CPU."""

from __future__ import annotations

from collections.abc import Iterator

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.live.scene import Paint, Scene


def painted(scene: Scene) -> Iterator[tuple[int, Paint]]:
    """Each CPU of owners and states, with its paint."""
    for owner in scene.owners:
        yield from ((cpu, owner.paint) for cpu in CPUSet.parse(owner.cpus))
    for state in scene.states:
        yield from ((cpu, state.paint) for cpu in CPUSet.parse(state.cpus))
