"""How many containers may be moved where nobody asks for it: one budget for all reasons."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from pinfold.core.kubelet.own_policies import DynamicOptions

_HOUR: Final = 3600.0


class MoveBudget:
    """What rebalancing, room for others, and controllers by load have together.

    Args:
        dynamic: what the policy ``dynamic`` may do; None: another policy, under which nobody moves.
        uptime: seconds since the machine was started.
    """

    def __init__(self, dynamic: DynamicOptions | None, uptime: Callable[[], float]) -> None:
        self._dynamic = dynamic
        self._uptime = uptime
        self._moved: deque[float] = deque()

    @property
    def left(self) -> int:
        """How many may be moved at once, now; never below 0."""
        if self._dynamic is None:
            return 0
        while self._moved and self._moved[0] <= self._uptime() - _HOUR:
            self._moved.popleft()
        left = self._dynamic.moves_per_hour - len(self._moved)
        return max(0, min(self._dynamic.most_moved, left))

    def take(self, moves: int) -> None:
        """So many are moved now."""
        now = self._uptime()
        self._moved.extend(now for _ in range(moves))
