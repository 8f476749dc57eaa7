"""The kernel's resctrl: parts of the caches, and of the memory bandwidth, by groups of CPUs."""

from pinfold.adapters.resctrl.groups import ResctrlGroups

__all__ = ["ResctrlGroups"]
