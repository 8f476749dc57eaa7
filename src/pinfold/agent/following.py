"""What follows who owns which CPUs, and is no cpuset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pinfold.adapters.irq import KernelInterrupts
from pinfold.agent.front import Front
from pinfold.agent.runnables import Runnable
from pinfold.core.kubelet.own_policies import InterruptOptions
from pinfold.documents import status as documents
from pinfold.node.books import Books
from pinfold.node.following.interrupts import InterruptFollower
from pinfold.ports.figures import Figure

MOVED: Final = "interrupts.json"
"""The file in the state directory with what interrupts had before they were moved."""


def keeps_interrupts_off(
    books: Books, options: InterruptOptions, state_dir: Path, front: Front, period: float
) -> Runnable:
    """Keeps interrupts off exclusive CPUs; also gives back what an agent before has left so."""
    follower = InterruptFollower(books, front(KernelInterrupts(state_dir / MOVED)), options, period)

    def about() -> documents.Interrupts | None:
        wish, last = follower.wish, follower.last
        if not wish.owners:
            return None
        return documents.Interrupts(
            cpus=str(wish.cpus),
            others=str(wish.others),
            kept=last.kept,
            fixed=[str(one) for one in last.fixed],
            pending=[str(one) for one in last.pending],
            moved=follower.moved,
            contested=follower.contested,
            irqbalance=[
                documents.Irqbalance(pid=one.pid, banned=str(one.banned), problem=one.problem)
                for one in last.balancers
            ],
            problem=follower.problem,
        )

    def figures() -> Iterator[Figure]:
        last = follower.last
        for name, meaning, count in (
            ("kept_off", "Interrupts that are off exclusive CPUs because of the agent.", last.kept),
            ("unmovable", "Those that may come there, and nobody can move.", len(last.fixed)),
        ):
            yield Figure(f"pinfold_interrupts_{name}", meaning, count, kind="gauge")
        yield Figure("pinfold_interrupts_moved", "Interrupts that were moved.", follower.moved)
        yield Figure(
            "pinfold_interrupts_contested",
            "Those of them that somebody else had moved back.",
            follower.contested,
        )

    return Runnable(
        "interrupts",
        follower.go_on,
        about=about,
        figures=figures,
        close=follower.close,
    )
