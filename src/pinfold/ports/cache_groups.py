"""What a node needs of whoever divides caches and memory bandwidth.

An adapter fulfils it; ``pinfold.planning.fake_cache_groups`` does so in memory.  Both pass the same
contract tests.  Each call is a few files of the kernel's and does not wait.
"""

from __future__ import annotations

from typing import Protocol

from pinfold.core.cache.offers import Offer
from pinfold.core.cache.plan import Now
from pinfold.core.cache.steps import Step
from pinfold.ports.errors import PortError


class CacheError(PortError):
    """The kernel did not take what was written, or could not be read."""


class NoCacheGroupsError(CacheError):
    """There is nothing to divide here: no hardware, no kernel, or it is not mounted."""


class NoGroupLeftError(CacheError):
    """The kernel has no id left for another group."""


class CacheGroups(Protocol):
    """The groups of resctrl."""

    def read(self) -> tuple[Offer, Now]:
        """What there is to divide, and how it is divided.

        Groups of ours are those that are on record, also by an agent before this one.

        Raises:
            NoCacheGroupsError: there is nothing to divide.
            CacheError: it cannot be read.
        """

    def carry_out(self, step: Step) -> None:
        """Do one step; what it is to undo is on record before.

        Raises:
            NoGroupLeftError: there is no id for the group that is to be made.
            CacheError: the kernel refuses.
        """

    def close(self) -> None:
        """Let go; without groups of ours nothing is left behind."""
