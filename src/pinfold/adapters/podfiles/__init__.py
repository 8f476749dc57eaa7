"""The small files from which applications learn their CPUs."""

from pinfold.adapters.podfiles.files import PodFileFolder, file_name

__all__ = ["PodFileFolder", "file_name"]
