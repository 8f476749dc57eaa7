"""The small files from which applications learn their CPUs."""

from pinfold.adapters.podfiles.assignments import AssignmentFolders
from pinfold.adapters.podfiles.files import PodFileFolder, file_name

__all__ = ["AssignmentFolders", "PodFileFolder", "file_name"]
