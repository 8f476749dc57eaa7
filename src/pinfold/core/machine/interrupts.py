"""Which CPUs an interrupt may come to while some CPUs are to have none."""

from __future__ import annotations

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet


class Saved(Struct, frozen=True, kw_only=True):
    """A set of CPUs in the kernel that is, or is about to be, changed.

    ``place`` names it; ``before`` is what it was, ``written`` what we have written, or are about
    to: another value that is found there is somebody else's.
    """

    place: str
    before: CPUSet
    written: tuple[CPUSet, ...]

    def is_ours(self, now: CPUSet) -> bool:
        """Whether what is there now is what we have written."""
        return now in self.written

    def left(self, now: CPUSet, ours: str) -> str:
        """What is said where it is left at somebody else's value; ``ours`` is whose time it was."""
        return (
            f"{self.place}: left at {str(now) or 'nothing'!r}, which somebody else has written; "
            f"it was {str(self.before)!r} before {ours}"
        )


def affinity_for(now: CPUSet, saved: Saved | None, away: CPUSet, others: CPUSet) -> CPUSet:
    """The CPUs that an interrupt is to come to.

    Args:
        now: where it may come now.
        saved: what is known of it; None: nobody has moved it.
        away: the CPUs that are to have none.
        others: where those go that are moved; each goes to what it might have of them before, so
            that what is near its device stays there.

    Returns:
        ``now`` where nothing is to be changed, which also holds for what somebody else has written
        that keeps off ``away``; what it was before we moved it, where it does not concern ``away``
        any more.
    """
    if saved is None or not (saved.is_ours(now) or now == saved.before):
        return now & others or others or now if now & away else now
    first = saved.before
    return first & others or others or now if first & away else first
