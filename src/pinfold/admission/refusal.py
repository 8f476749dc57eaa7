"""Why a pod that asks for more than a kubelet knows is not admitted."""

from __future__ import annotations

from typing import Final

from pinfold.core.topology_manager.hints import AllocationError
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR

INVALID_ANNOTATION: Final = "InvalidAnnotation"
"""The reason where an annotation of ours cannot be read, or names no container."""


class UnmetWishError(AllocationError):
    """A wish that cannot be met; ``reason`` is the pod's, and the message says what would help.

    It ends an admission wherever it is raised: before anything is looked for, when hints are made,
    or in an allocation.
    """

    def __init__(self, message: str, reason: str = UNEXPECTED_ADMISSION_ERROR) -> None:
        super().__init__(message)
        self.reason = reason
