"""What is said of decisions: in the history, a bounded number of them, and in words everywhere."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import Final, TypedDict

from pinfold.core.controllers.load_driven import LoadDriven, Watches
from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.moves.gathering import idle_parts
from pinfold.core.moves.owners import Owner
from pinfold.documents.control import (
    Control,
    Decided,
    Lending,
    LoadDrivenContainer,
    Parked,
    Waiting,
)
from pinfold.documents.history import Controlled
from pinfold.node.books import Books
from pinfold.node.control.loop import ControlLoop, Decision
from pinfold.node.view import Reader
from pinfold.ports.errors import PortError
from pinfold.ports.records import ByLoad

PER_HOUR: Final = 60
"""Entries of one rank within an hour; CPUs may be lent and taken back every few seconds."""

_HOUR: Final = 3600.0

_NOBODY_DECIDES: Final = (
    "nothing while this agent runs: it gives no CPUs by load (loadDriven.use, and cpuManagerPolicy "
    "dynamic)"
)


def control_document(
    books: Books, loop: ControlLoop, refused: Mapping[str, str], lending: Lending | None = None
) -> Control:
    """What ``status`` says of controllers."""
    now = asyncio.get_running_loop().time()
    clock = books.observers.clock()
    return Control(
        controllers=[one.name for one in loop.controls],
        waiting=[
            Waiting(reason=one.reason, **_proposed(books, one.proposal)) for one in loop.waiting()
        ],
        decided=[
            Decided(
                at=clock - (now - one.at), problem=one.problem, **_proposed(books, one.proposal)
            )
            for one in loop.decisions
        ],
        moves_left=loop.budget.left,
        refused=refused,
        lending=lending,
        parked=_parked(books, loop.memories),
        load_driven=load_driven_containers(books, loop)
        if Rank.LOAD_DRIVEN.word in loop.memories
        else None,
    )


def _parked(books: Books, memories: Mapping[str, object]) -> Parked | None:
    view = books.view
    policy = view.node.cpu_policy
    if policy is None or Rank.PARKING.word not in memories:
        return None
    idle = view.parked & view.state.ledger.default
    found = idle_parts(policy.topology, idle)
    return Parked(cpus=str(idle), cores=found.cores, packages=found.packages)


def load_driven_containers(books: Reader, loop: ControlLoop | None) -> list[LoadDrivenContainer]:
    """How each container that has its CPUs by load has them now; None: nobody decides by load."""
    name = Rank.LOAD_DRIVEN.word
    controls = () if loop is None else loop.controls
    controller = next((one.controller for one in controls if one.name == name), None)
    watches: Watches = {} if loop is None else loop.memories.get(name, {})
    waits = {
        owner: one.reason
        for one in (() if loop is None else loop.waiting())
        if one.proposal.rank is Rank.LOAD_DRIVEN
        for owner in one.proposal.owners
    }
    found = []
    for uid, one in books.view.state.load_driven.items():
        known = books.view.pods.active[uid].record.load_driven
        for container, count in one.counts().items():
            owner = Owner(uid, container)
            cpus = books.view.state.ledger.cpus_of(*owner)
            watch, by_load = watches.get(owner), known.get(container, ByLoad())
            why = "" if watch is None else watch.why
            if (reason := waits.get(owner)) is not None:
                why = "; ".join(filter(None, (why, reason)))
            until = _NOBODY_DECIDES
            if isinstance(controller, LoadDriven) and loop is not None:
                until = (
                    controller.promoted_at(count, loop.wait_source)
                    if cpus is None
                    else controller.demoted_at(count, by_load.used)
                )
            found.append(
                LoadDrivenContainer(
                    container=full_name(books, owner),
                    cpus="" if cpus is None else str(cpus),
                    charged=count if cpus is None else 0,
                    why=why,
                    since=by_load.at or None,
                    because=_because(by_load, count, shares=cpus is None),
                    until=until,
                )
            )
    return found


def _because(known: ByLoad, count: int, *, shares: bool) -> str:
    """Why a container is where it is, as far as that is on record."""
    if shares:
        return "its load had fallen" if known.at else "it begins so"
    if known.used is None:
        return "its load asked for it, with which usage is not on record"
    return f"it used {known.used:.2f} of {count} CPUs when its load asked for it"


class _Proposed(TypedDict):
    rank: str
    why: str
    containers: list[str]
    cpus: str


def _proposed(books: Books, proposal: Proposal) -> _Proposed:
    return _Proposed(
        rank=proposal.rank.word,
        why=proposal.why,
        containers=containers_of(books, proposal),
        cpus=str(proposal.cpus),
    )


def containers_of(books: Books, proposal: Proposal) -> list[str]:
    """The containers of a proposal, as ``namespace/pod/container``."""
    return sorted(full_name(books, owner) for owner in proposal.owners)


def full_name(books: Reader, owner: Owner) -> str:
    """``namespace/pod/container``; of a pod that has gone its uid."""
    pod = books.view.pods.active.get(owner.pod_uid)
    name = owner.pod_uid if pod is None else pod.name
    return name if owner.is_pod else f"{name}/{owner.container}"


class DecisionHistory:
    """Writes what was decided into the history of the books."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._told: defaultdict[Rank, deque[float]] = defaultdict(deque)
        self._unsaid: Counter[Rank] = Counter()

    def decided(self, decision: Decision) -> None:
        """Write it beside all else, or count that it was not."""
        rank, told = decision.proposal.rank, self._told[decision.proposal.rank]
        while told and told[0] <= decision.at - _HOUR:
            told.popleft()
        if len(told) >= PER_HOUR:
            self._unsaid[rank] += 1
            return
        told.append(decision.at)
        document = Controlled(
            **_proposed(self._books, decision.proposal),
            problem=decision.problem,
            unsaid=self._unsaid.pop(rank, 0),
        )
        self._books.spawn(self._write(document), name="the history of a decision")

    async def _write(self, document: Controlled) -> None:
        try:
            async with self._books.change() as draft:
                await draft.tell(draft.entry("controlled", document=document))
        except PortError as error:
            self._books.observers.report(None, f"{document.rank}: {document.why}: {error}")
