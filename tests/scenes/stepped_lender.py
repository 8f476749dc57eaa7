"""``python -m tests.scenes.stepped_lender FOLDER NAME SECONDS N M``: lends, and is stopped.

It lends and caps in the cgroup tree NAME and changes the pool meanwhile, under a lease of so many
seconds.  It stops before its Nth write of a cgroup's file, and its first guardian before its Mth
read or write of one; 0 is never.  A line says what it believes at the end; then it waits.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from pinfold.adapters.cgroup import open_cgroups
from pinfold.adapters.guardian import GuardianProcess, guardian
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.leases.lease import Lease
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey
from pinfold.ports.guardian import LeaseError

BORROWER = ContainerKey("uid-borrower", "main")
NOTHING, FIRST, SECOND = CPUSet(), CPUSet([0]), CPUSet([1])

STEPPED = """
import os, sys
sys.path.append({folder!r})
import program
count = 0
def step(event, args):
    global count
    if event == "open" and {name!r} in str(args[0]):
        count += 1
        if count == {at}:
            os.kill(os.getpid(), 19)
home = program.put_number
def put_number(place, number):
    home(place, number)
    if place == program.ENDED:
        sys.addaudithook(step)
program.put_number = put_number
program.main()
"""


async def live(folder: Path, name: str, seconds: float, at: int) -> None:
    """Make the tree, then lend, cap and change the pool."""
    cgroups = open_cgroups(name=name)
    lost = []
    guards = GuardianProcess(folder, cgroups.undoing(), lease=seconds, look=seconds / 4)
    lease = Lease(cgroups, guards, lambda _: None, lambda: lost.append(1), clock=time.time)
    await lease.open()
    await cgroups.open(FIRST | SECOND)
    await cgroups.place(BORROWER, Placement(idle=True))
    # It has nothing of this process open, so that whoever reads from that hears of its end.
    with subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL) as borrower:  # noqa: ASYNC220 - it does not wait
        await cgroups.enter(BORROWER, borrower.pid)
        await lease.set_shared(FIRST)
        count = 0

        def step(event: str, args: tuple[Any, ...]) -> None:
            nonlocal count
            if event == "open" and name in str(args[0]) and args[2] & os.O_WRONLY:
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGSTOP)

        sys.addaudithook(step)
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [
            lambda: lease.lend(SECOND),
            lambda: lease.cap(0.5),
            lambda: lease.set_shared(SECOND),
            lambda: lease.lend(FIRST),
            lambda: lease.cap(None),
            lambda: lease.lend(NOTHING),
            lambda: lease.set_shared(FIRST),
            lambda: lease.lend(SECOND),
            lambda: lease.cap(0.7),
        ]
        for work in works:
            try:
                lease.renew()
                await work()
            except LeaseError:
                await lease.recover()
            if lost:
                # Only the first one is slow.
                guardian.GUARD = GUARD  # type: ignore[misc] # the program under test
        try:
            lease.renew()
            held = lease.is_had
        except LeaseError:
            await lease.recover()
            held = False
        seen = (await cgroups.observe()).idle
        assert seen is not None
        print(json.dumps({"steps": count, "held": held, "lost": len(lost)}), flush=True)  # noqa: T201 - for whoever started it
        while held:
            try:
                lease.renew()
            except LeaseError:
                await lease.recover()
            await asyncio.sleep(seconds / 8)
        await asyncio.sleep(1000)


GUARD = guardian.GUARD


def main() -> None:
    """Run it."""
    folder, name, seconds, at, stop = sys.argv[1:]
    place = str(Path(guardian.__file__).parent)
    guardian.GUARD = STEPPED.format(folder=place, name=name, at=stop)  # type: ignore[misc] # the same
    asyncio.run(live(Path(folder), name, float(seconds), int(at)))


if __name__ == "__main__":
    main()
