"""Room that others have made for a pod: it is kept until the pod is there, and not for long."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.books import Books
from pinfold.node.moves.moving import Moving

KEPT: Final = 30.0
"""Seconds from the end of the moves: a kubelet tries again after 10 to 15."""

_NOBODY_YET: Final = "# room"
"""A name that no pod and no container can have."""


class _Room(Struct, frozen=True, eq=False):
    """CPUs for a pod, and the moves that make them free."""

    cpus: CPUSet
    moving: Moving


class MadeRoom:
    """The room of each pod that it was made for; it is on no record, and the pool has it."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._rooms: dict[str, _Room] = {}

    def keep(self, pod_uid: str, cpus: CPUSet, moving: Moving) -> None:
        """Keep CPUs for a pod, from now on until some time after these moves."""
        room = self._rooms[pod_uid] = _Room(cpus, moving)
        self._books.spawn(self._let_go(pod_uid, room), name=f"room for {pod_uid}")

    def taken(self, pod_uid: str) -> None:
        """The pod is there, and has what it needs."""
        self._rooms.pop(pod_uid, None)

    def of_others(self, pod_uid: str = "") -> CPUSet:
        """What is kept, but not for this pod."""
        return CPUSet.union_of(room.cpus for uid, room in self._rooms.items() if uid != pod_uid)

    def seen_by(self, state: NodeState, pod_uid: str) -> NodeState:
        """What there is for a pod: the room of others is theirs as if they were there."""
        kept = self.of_others(pod_uid) & state.ledger.default
        if not kept:
            return state
        return replace(state, ledger=state.ledger.with_assignment(_NOBODY_YET, _NOBODY_YET, kept))

    async def _let_go(self, pod_uid: str, room: _Room) -> None:
        if (await room.moving.ended()).done:
            await asyncio.sleep(KEPT)
        if self._rooms.get(pod_uid) is room:
            del self._rooms[pod_uid]
