"""What the books call and do not depend on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from pinfold.admission.admission import NodeState
from pinfold.admission.decision import Decision
from pinfold.core.values.cpuset import CPUSet


class Observers(Struct, frozen=True):
    """Whom the books ask and tell.

    ``clock`` gives seconds since the epoch; ``describe`` makes the JSON document of a decision for
    the history; ``report`` takes a problem for the operator (pod as ``namespace/name`` or None).
    """

    clock: Callable[[], float]
    describe: Callable[[Decision, NodeState], Awaitable[str]]
    report: Callable[[str | None, str], None]
    pool_changed: Callable[[CPUSet], None] = lambda _: None
    """Told the shared pool whenever the kernel has been."""
    online: Callable[[], CPUSet] | None = None
    """The CPUs that are online at this moment."""
    uptime: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    """Seconds since the machine was started; nobody sets that clock."""
    boot: str = ""
    """The kernel's name for the time since then."""
