"""Containers kept on their CPUs without cgroups: by the affinity of each of their threads."""

from pinfold.adapters.affinity.affinity import Affinity
from pinfold.adapters.affinity.limitations import limitations

__all__ = ["Affinity", "limitations"]
