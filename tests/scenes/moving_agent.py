"""``python -m tests.scenes.moving_agent agent --config FILE``: an agent that is told whom to move.

``move.json`` beside FILE has a pod uid, its next CPUs, and its NUMA nodes of memory before and
after; what became of it is in ``moved.json``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from pinfold.agent.start import Start
from pinfold.agent.wiring import open_agent
from pinfold.config.agent import load_agent_config
from pinfold.core.moves.owners import Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.books import Books
from pinfold.node.moves.mover import Mover


async def move(books: Books, folder: Path) -> None:
    """Make each move that is asked for."""
    mover = Mover(books)
    asked, told = folder / "move.json", folder / "moved.json"
    while True:
        await asyncio.sleep(0.05)
        if not asked.exists():
            continue
        said = json.loads(asked.read_text())
        asked.unlink()
        wish = Wish(
            Owner(said["uid"], "main"),
            CPUSet.parse(said["cpus"]),
            mems=CPUSet.parse(said["mems"]),
            mems_before=CPUSet.parse(said["mems_before"]),
            migrate=said["migrate"],
        )
        async with books.change() as draft:
            plan = plan_moves(draft.state.ledger, [wish])
            moving = await mover.begin(draft, plan, why="rebalance")
        ended = await moving.ended()
        new = told.with_suffix(".new")
        new.write_text(json.dumps({"problem": ended.problem}))
        new.rename(told)


async def main() -> None:
    """Run it."""
    file = Path(sys.argv[-1])
    async with open_agent(Start(load_agent_config(file))) as agent:
        following = asyncio.create_task(move(agent.books, file.parent))
        try:
            await agent.run()
        finally:
            following.cancel()


if __name__ == "__main__":
    asyncio.run(main())
