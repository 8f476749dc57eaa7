"""What a node does beyond a kubelet: our own options, by groups of the section ``pinfold``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field, to_builtins
from msgspec.structs import fields

DYNAMIC: Final = "dynamic"
OWN_POLICIES: Final = (DYNAMIC, "configurable")
"""Pinfold's names for policies that place exactly as ``static`` does.

``dynamic`` may change a container's CPUs while it runs; ``configurable`` is an alias, so that
others can tell a policy with options from a plain one.
"""


NEVER: Final = "never"
_UNITS: Final[Mapping[str, int]] = MappingProxyType({"s": 1, "m": 60, "h": 3600})


class _Options(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A group of options, named as in the section ``pinfold`` of a configuration file."""


class DynamicOptions(_Options, frozen=True):
    """What the policy ``dynamic`` may do by itself: nothing, unless it is told to."""

    rebalance_period: Annotated[
        str,
        Meta(
            pattern="^(never|[1-9][0-9]{0,4}[smh])$",
            description="never, or seconds, minutes or hours such as 5m",
        ),
    ] = "never"
    """How often containers are moved to fewer NUMA nodes, where that is possible: ``never``, or
    seconds, minutes or hours such as ``5m``."""
    make_room: bool = False
    """Whether others are moved for a pod that is rejected although enough CPUs are free."""
    moves_per_hour: Annotated[int, Meta(ge=0, le=3600)] = 12
    """How many containers may be moved within an hour, where nobody asks for it."""
    most_moved: Annotated[int, Meta(ge=1, le=100)] = 4
    """How many containers may be moved at once, where nobody asks for it."""
    opt_in: bool = False
    """Whether only those containers are moved whose pods ask for it (annotation ``rebalance``)."""

    @property
    def period_seconds(self) -> float:
        """The period in seconds; 0 for never."""
        if self.rebalance_period == NEVER:
            return 0.0
        return float(self.rebalance_period[:-1]) * _UNITS[self.rebalance_period[-1]]


class IsolatedCPUs(_Options, frozen=True):
    """The CPUs that the kernel was booted to isolate."""

    use: Literal["never", "prefer", "require"] = "never"
    """Whether exclusive CPUs are isolated ones; ``never`` ignores isolation, as a kubelet does."""


class SMTIsolate(_Options, frozen=True):
    """One thread of each core for exclusive use; its siblings stay idle."""

    use: bool = False
    """Whether containers with exclusive CPUs are alone on their cores, where they do not say."""


class OwnPolicies(_Options, frozen=True):
    """What a node does beyond a kubelet, by groups."""

    dynamic: DynamicOptions = DynamicOptions()
    """What the policy ``dynamic`` may do by itself."""
    isolated_cpus: IsolatedCPUs = field(default=IsolatedCPUs(), name="isolatedCPUs")
    """The CPUs that the kernel was booted to isolate."""
    smt_isolate: SMTIsolate = SMTIsolate()
    """One thread of each core for exclusive use; its siblings stay idle."""

    @property
    def by_group(self) -> dict[str, dict[str, Any]]:
        """All options as a file has them, by group."""
        return {group.encode_name: to_builtins(getattr(self, group.name)) for group in fields(self)}

    @property
    def options(self) -> dict[str, str]:
        """All options in one list, such as ``isolatedCPUs.use: prefer``."""
        return {
            f"{group}.{name}": value if isinstance(value, str) else str(value).lower()
            for group, options in self.by_group.items()
            for name, value in options.items()
        }
