"""The life of a pod that the agent runs: all of it that is not in the books."""

from __future__ import annotations

import asyncio

from msgspec import Struct, field

from pinfold.core.pod.pod import Container
from pinfold.ports.errors import ContainerKey
from pinfold.ports.held_process import HeldProcess
from pinfold.ports.records import CANNOT_RUN


class PodLife(Struct, eq=False):
    """From the admission until nothing is left.

    ``lock`` is held while a container is being started or everything is being ended; ``started``
    is set when every container was started once, ``gone`` when nothing of the pod is left.  It has
    no record, nor what it is to run: a resize changes both, and the books have the newest.
    ``name`` is ``namespace/name``.
    """

    uid: str
    name: str
    attached: HeldProcess | None = None
    """The process of a pod that wraps one which somebody else started."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    ending: bool = False
    """Somebody ends the pod; nobody else does it again."""
    failure: str = ""
    """Why a container could not be started, the last time that one could not, or why the pod was
    ended."""
    failure_reason: str = CANNOT_RUN
    """The reason that goes with it."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    reported_exit: int | None = None
    """The exit code of the attached process, from the one who waited for it."""

    def key(self, container: Container) -> ContainerKey:
        """The container's key."""
        return ContainerKey(self.uid, container.name)

    def report_exit(self, code: int) -> None:
        """Take the exit code of the attached process."""
        self.reported_exit = code
        self.reported.set()
