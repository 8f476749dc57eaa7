"""Cgroups: the kernel's side of where containers run, version 1 and 2."""

from pinfold.adapters.cgroup.opening import claim_of_runtime, open_cgroups, remove_leftovers
from pinfold.adapters.cgroup.v1_domains import DomainSettings
from pinfold.ports.errors import CgroupError

__all__ = [
    "CgroupError",
    "DomainSettings",
    "claim_of_runtime",
    "open_cgroups",
    "remove_leftovers",
]
