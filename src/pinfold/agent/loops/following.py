"""What follows who owns which CPUs, and is no cpuset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pinfold.adapters.irq import KernelInterrupts
from pinfold.adapters.machines.online import online_cpus
from pinfold.adapters.resctrl import ResctrlGroups
from pinfold.agent.front import Front
from pinfold.agent.loops.runnables import Runnable
from pinfold.core.cache.options import CacheOptions
from pinfold.core.cache.plan import Why
from pinfold.core.cache.schemata import format_schemata
from pinfold.core.kubelet.own_policies import InterruptOptions, OwnPolicies
from pinfold.documents import cache as cache_documents
from pinfold.documents import following as documents
from pinfold.node.books import Books
from pinfold.node.following.caches import CacheFollower, one_line
from pinfold.node.following.domains import DomainFollower
from pinfold.node.following.interrupts import InterruptFollower
from pinfold.ports.figures import Figure

MOVED: Final = "interrupts.json"
"""The file in the state directory with what interrupts had before they were moved."""

DIVIDED: Final = "resctrl.json"
"""The file in the state directory with the groups of resctrl that are ours."""


def followers(
    books: Books, own: OwnPolicies | None, state_dir: Path, front: Front, period: float
) -> list[Runnable]:
    """All of them; also what an agent before has left is put right by them."""
    options = OwnPolicies() if own is None else own
    return [
        keeps_interrupts_off(books, options.irqs, state_dir, front, period),
        *divides_caches(books, options.cache, state_dir, front, period),
        keeps_domains(books, period),
    ]


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


def divides_caches(
    books: Books, options: CacheOptions, state_dir: Path, front: Front, period: float
) -> list[Runnable]:
    """Gives owners of CPUs their parts of the caches; nobody does while there is nothing to do."""
    record = state_dir / DIVIDED
    if not options.use and not record.exists():
        return []
    groups = front(ResctrlGroups(record, options.mount, online_cpus))
    follower = CacheFollower(books, groups, options, period)

    def about() -> cache_documents.CacheClasses | None:
        last, plan = follower.last, follower.last.plan
        if not options.use:
            return None
        owners: dict[str, list[str]] = {}
        for owner, name in plan.placed.items():
            owners.setdefault(name, []).append(owner)
        return cache_documents.CacheClasses(
            ids=last.offer.ids if last.offer else 0,
            groups=[
                cache_documents.CacheGroup(
                    name=name,
                    cpus=str(plan.groups[name].cpus),
                    schemata=one_line(format_schemata(plan.groups[name].schemata)),
                    containers=containers,
                )
                for name, containers in sorted(owners.items())
            ],
            others=one_line(format_schemata(plan.rest)),
            foreign=[group.name for group in last.now.foreign] if last.now else [],
            refused={
                owner: cache_documents.CacheRefusal(reason=one.why.value, message=one.message)
                for owner, one in sorted(plan.refused.items())
            },
            problem=follower.problem,
        )

    def figures() -> Iterator[Figure]:
        last, plan = follower.last, follower.last.plan
        for name, meaning, count in (
            ("groups", "Groups of resctrl that are the agent's.", len(set(plan.placed.values()))),
            ("group_ids", "Groups that there can be.", last.offer.ids if last.offer else 0),
            ("containers", "Containers that have a part of the caches.", len(plan.placed)),
        ):
            yield Figure(f"pinfold_cache_{name}", meaning, count, kind="gauge")
        refused = Counter(one.why for one in plan.refused.values())
        for why in Why:
            yield Figure(
                "pinfold_cache_refused",
                "Containers that share what all others have, although they have a class.",
                refused[why],
                {"reason": why.value},
                kind="gauge",
            )
        yield Figure("pinfold_cache_changes", "Changes of groups of resctrl.", follower.changes)

    return [
        Runnable(
            "cache",
            follower.go_on if options.use else follower.follow,
            about=about,
            figures=figures,
            close=follower.close,
        )
    ]


def keeps_domains(books: Books, period: float) -> Runnable:
    """Sees that partitions are in force, and tries again where they are not."""
    follower = DomainFollower(books, period)

    def about() -> documents.SchedulingDomains | None:
        if not follower.domains:
            return None
        return documents.SchedulingDomains(
            containers=[
                documents.Domain(
                    pod=one.pod,
                    container=key.name,
                    cpus=str(one.cpus),
                    wished=one.wished,
                    found=one.found,
                    problem=one.problem,
                )
                for key, one in sorted(follower.domains.items())
            ]
        )

    def figures() -> Iterator[Figure]:
        domains = follower.domains.values()
        for name, meaning, count in (
            ("", "Containers whose CPUs are to be a partition.", len(domains)),
            ("_in_force", "Those of them whose CPUs are.", sum(one.in_force for one in domains)),
        ):
            yield Figure(f"pinfold_scheduling_domains{name}", meaning, count, kind="gauge")

    return Runnable("scheduling domains", follower.go_on, about=about, figures=figures)
