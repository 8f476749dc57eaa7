"""Random lives of pods that an agent runs, with faults, drift, CPUs that go, and its own death."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.reconciler import reconcile
from pinfold.ports.errors import PortError
from tests.scenes.manager_harness import Harness, manifest, mixed

Operation = tuple[str, Any, Any]
"""What happens, and to whom or how; see :func:`operate`."""


async def live(node: Harness, operations: Sequence[Operation]) -> None:
    """Let all this happen one after the other, whatever is refused; all is well again then."""
    for operation in operations:
        with contextlib.suppress(PortError, NameTakenError, UnknownPodError):
            await asyncio.wait_for(operate(node, *operation), 600)
        for _ in range(4):
            await asyncio.sleep(0)
    await comes_to_rest(node)


async def comes_to_rest(node: Harness) -> None:
    """No port fails any more, all CPUs are there, and what was begun is over."""
    for port in (node.store, node.cgroups, node.runtime):
        port.faults.fail_at.clear()
    await node.books.set_offline(CPUSet())
    node.cgroups.online = node.cgroups.machine
    await asyncio.sleep(60)
    await node.settle()
    await reconcile(node.books)
    await node.settle()
    node.check()


async def again(node: Harness) -> None:
    """Whoever looks after the agent starts it again until the injected faults are over."""
    while True:
        await node.kill()
        with contextlib.suppress(PortError):
            await node.start()
            break


async def operate(node: Harness, kind: str, what: Any, how: Any) -> None:
    """Let one thing happen."""
    known = node.runtime.known()
    if kind == "admit":
        await node.admit(manifest(f"p{what}", *how), wait=False)
    elif kind == "mixed":
        await node.admit(mixed(manifest(f"p{what}", *how)), wait=False)
    elif kind == "init":
        await node.admit(manifest(f"p{what}", "1", init=(how,), restartPolicy="Never"), wait=False)
    elif kind == "release":
        await node.manager.release(f"p{what}")
    elif kind == "exit" and known:
        node.runtime.exit(known[what % len(known)].id, how)
    elif kind == "restart":
        await again(node)
    elif kind == "fault":
        port = getattr(node, what)
        port.faults.fail_at.add(port.faults.calls + how)
    elif kind == "drift" and node.cgroups.groups:
        groups = [node.cgroups.groups[key] for key in sorted(node.cgroups.groups)]
        if what % 2:
            node.cgroups.shared = node.cgroups.machine
        else:
            group = groups[what % len(groups)]
            if group.cpus is None:
                group.placement = replace(group.placement, cpus=node.cgroups.machine)
            group.cpus = node.cgroups.machine
    elif kind == "reconcile":
        await reconcile(node.books)
    elif kind == "offline":
        node.cgroups.online = node.cgroups.machine - CPUSet.parse(what)
        await node.books.set_offline(CPUSet.parse(what))
