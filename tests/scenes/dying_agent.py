"""``python -m tests.scenes.dying_agent CONFIG N before|after``: dies at its Nth effect.

Effects are the calls of the ports: what is written to the record, to cgroups, to the runtime, and
what device plugins are asked.  The count is kept in ``CONFIG.calls``, so that whoever started it
knows how many there are.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pinfold.agent.wiring import start_agent
from pinfold.config.agent import load_agent_config

_EFFECTS = {
    *("open", "set_shared", "place", "enter", "kill", "remove"),
    *("create", "start", "signal", "attach"),
    *("commit", "publish", "retract"),
    *("allocate", "pre_start"),
}


class Mortal:
    """A port that counts, and ends the whole process at one call."""

    calls = 0

    def __init__(self, port: Any, at: int, *, after: bool, count: Path) -> None:
        self._port = port
        self._at = at
        self._after = after
        self._count = count

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name not in _EFFECTS:
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            Mortal.calls += 1
            here = Mortal.calls == self._at
            self._count.write_text(str(Mortal.calls))
            if here and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = await method(*args, **kwargs)
            if here:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call


def main() -> None:
    """Run it."""
    file, at, when = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

    def mortal(port: Any, /) -> Any:
        return Mortal(port, at, after=when == "after", count=file.with_suffix(".calls"))

    asyncio.run(start_agent(load_agent_config(file), mortal))


if __name__ == "__main__":
    main()
