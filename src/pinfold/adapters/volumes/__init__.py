"""The ``emptyDir`` volumes of pods: folders, tmpfs and hugetlbfs mounts."""

from pinfold.adapters.volumes.folders import VolumeFolders

__all__ = ["VolumeFolders"]
