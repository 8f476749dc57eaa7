"""The small files from which applications learn their CPUs."""

from pinfold.adapters.podfiles.folder import PodFolder, file_name

__all__ = ["PodFolder", "file_name"]
