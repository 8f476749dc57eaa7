"""Owners that end while a plan is in flight: their claims stay until it is over.

Others may be waiting for their CPUs, which must not become anybody else's meanwhile.  In plan and
ledger such an owner goes on under a name that no pod and no container can have, so that another
one of its own name can be admitted at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import (
    Announce,
    GiveBack,
    MigrateMemory,
    MovePlan,
    MoveState,
    Narrow,
    ShrinkPool,
    Step,
    Wait,
    Widen,
)

_MARK: Final = "#"
"""What the uid of a pod, or the name of a container, that is gone begins with."""

_T = TypeVar("_T")


def gone(owner: Owner, *, with_pod: bool) -> Owner:
    """What an owner is called that has ended, alone or with its whole pod."""
    if with_pod:
        return Owner(f"{_MARK}{owner.pod_uid}", owner.container)
    return Owner(owner.pod_uid, f"{_MARK}{owner.container}")


def is_gone(owner: Owner) -> bool:
    """Whether an owner has ended, and only its claim is left."""
    return owner.pod_uid.startswith(_MARK) or owner.container.startswith(_MARK)


def renamed(plan: MovePlan, names: Mapping[Owner, Owner]) -> MovePlan:
    """The same plan, with other names for some owners."""

    def name(owner: Owner) -> Owner:
        return names.get(owner, owner)

    def keys(values: Mapping[Owner, _T]) -> dict[Owner, _T]:
        return {name(owner): value for owner, value in values.items()}

    def step(one: Step) -> Step:
        match one:
            case ShrinkPool(claims):
                return ShrinkPool(keys(claims))
            case GiveBack():
                return one
            case Widen() | Announce() | Wait() | Narrow() | MigrateMemory():
                return replace(one, owner=name(one.owner))

    start = plan.start
    return replace(
        plan,
        start=MoveState(
            keys(start.claims),
            keys(start.placed),
            start.pool,
            keys(start.mems),
            keys(start.coming),
        ),
        steps=tuple(map(step, plan.steps)),
        mixed=frozenset(map(name, plan.mixed)),
        delays=keys(plan.delays),
    )
