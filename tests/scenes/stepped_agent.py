"""``python -m tests.scenes.stepped_agent ROOT N M``: is killed between two steps.

It makes and starts one container.  It is killed before its Nth effect on the folder ROOT, when the
supervisor and its main process have come as far as they can: to their Mth step, where they are
stopped.  Steps are what Python's audit hooks tell: files opened, renamed and truncated, processes
forked and executed.  ``ROOT.steps`` says how many there were on both sides.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from pinfold.adapters.process import ProcessRuntime, launch
from pinfold.core.pod.workload import Process
from tests.scenes.process_world import process_state, processes_of
from tests.scenes.runtime_contract import a_spec

STEPS = {"open", "os.fork", "os.rename", "os.truncate", "os.exec"}
EFFECTS = {*STEPS, "os.mkdir", "os.posix_spawn", "os.remove", "os.rmdir"}
PATIENCE = 10.0

STEPPED = """
import os, sys
sys.path.append({folder!r})
import supervisor
count = 0
def step(event, args):
    global count
    if event in {steps!r}:
        count += 1
        if count == {at}:
            os.kill(os.getpid(), 19)
sys.addaudithook(step)
supervisor.main()
"""


def has_come_far(root: Path) -> bool:
    """Whether supervisor and main process can go no further: stopped, or waiting for the word."""
    states = [process_state(pid) for pid in processes_of(str(root)) if pid not in AGENTS]
    if not states or "T" in states:
        return True
    return len(states) == 2 and any(root.glob("*/state")) and set(states) == {"S"}


AGENTS = {os.getpid(), os.getppid()}


def main() -> None:
    """Run it."""
    root, at, stop = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    folder = str(Path(launch.__file__).parent)
    launch._SUPERVISE = STEPPED.format(folder=folder, steps=STEPS, at=stop)  # type: ignore[misc] # the program under test # noqa: SLF001 - the same
    effects = 0
    is_dying = False

    def effect(event: str, args: tuple[object, ...]) -> None:
        nonlocal effects, is_dying
        here = event == "os.posix_spawn" or str(root) in str(args[0] if args else "")
        if is_dying or event not in EFFECTS or not here:
            return
        effects += 1
        if effects == at:
            is_dying = True
            deadline = time.monotonic() + PATIENCE
            while not has_come_far(root) and time.monotonic() < deadline:
                time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGKILL)

    async def live() -> None:
        runtime = ProcessRuntime(root, patience=PATIENCE)
        await runtime.containers()
        sys.addaudithook(effect)
        created = await runtime.create(a_spec(Process(("sleep", "1000"))))
        await runtime.start(created.id)
        print(effects, flush=True)  # noqa: T201 - for whoever started it

    asyncio.run(live())


if __name__ == "__main__":
    main()
