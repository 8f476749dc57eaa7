"""Containers kept on their CPUs without cgroups: by the affinity of each of their threads."""

from pinfold.adapters.affinity.affinity import Affinity

__all__ = ["Affinity"]
