"""Takes the taint of a new node away, once its containers are placed.

A kubelet that registers its node with a taint gets no pods but those that tolerate it, so none that
could own CPUs is created before the agent is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.ports.kubernetes import KubernetesError
from pinfold.retry.backoff import Backoff

PERIOD: Final = 60.0
"""Seconds between two looks: a node that was deleted registers anew, with the taint."""

LOOK: Final = 0.1
"""Seconds between two looks at whether the agent is at work."""

_CONFLICT: Final = 409
_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 60.0


class StartUpTaint:
    """Removes the taints of one key from the node while the agent is at work.

    Args:
        client: the API server.
        node: the node's name.
        key: the taints' key.
        ready: whether containers are placed here.
        removed: told when the node had the taint, and has it no more.
        report: told each problem once.
        period: seconds.
    """

    def __init__(  # noqa: PLR0913 - collaborators
        self,
        client: KubeClient,
        node: str,
        key: str,
        *,
        ready: Callable[[], bool],
        removed: Callable[[], None],
        report: Callable[[str], None],
        period: float = PERIOD,
    ) -> None:
        self._client = client
        self._node = node
        self._key = key
        self._ready = ready
        self._removed = removed
        self._period = period
        self._backoff = Backoff(
            _FIRST_RETRY,
            _LONGEST_RETRY,
            KubernetesError,
            report=lambda problem: report(
                f"the taint {key} of the node was not removed: {problem}"
            ),
        )

    @property
    def problem(self) -> str:
        """Why the node may still have the taint; "" where nothing went wrong."""
        return self._backoff.problem

    async def run(self) -> None:
        """Remove it whenever it is there, for ever."""
        while True:
            pause = LOOK
            if self._ready():
                async with self._backoff:
                    pause = await self._look()
                if self._backoff.problem:
                    continue
            await asyncio.sleep(pause)

    async def _look(self) -> float:
        """Remove it if it is there; the seconds until the next look."""
        try:
            if await self._remove():
                self._removed()
        except KubernetesError as error:
            if error.status == _CONFLICT:
                return LOOK  # somebody else has changed the node meanwhile
            raise
        return self._period

    async def _remove(self) -> bool:
        """Whether the node had the taint."""
        node = await self._client.get_node(self._node)
        metadata, spec = node.get("metadata"), node.get("spec")
        taints = spec.get("taints") if isinstance(spec, dict) else None
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(taints, list):
            return False
        left = [one for one in taints if not isinstance(one, dict) or one.get("key") != self._key]
        if len(left) == len(taints):
            return False
        await self._client.set_taints(self._node, left, version=str(version or ""))
        return True
