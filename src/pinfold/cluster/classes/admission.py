"""What the mutating webhook of classes answers: a pod with its binding, or why it can have none."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Sequence
from typing import Final

import msgspec

from pinfold.cluster.classes.known import Known
from pinfold.core.classes.binding import BoundPod, NotBindableError, bound_pod
from pinfold.core.classes.bound import bound_text
from pinfold.core.pod.api import PodError
from pinfold.documents.admission_review import (
    MOST_WARNING,
    AdmissionRequest,
    AdmissionResponse,
    Status,
)
from pinfold.ports.errors import PortError

MOST_AUDITED: Final = 1024
"""Characters of an annotation of an audit event; what a pod is bound to is in the pod, too."""

_CREATED: Final = ("", "pods", "CREATE")


class ClassAdmission:
    """Decides about pods that are created, by what is known of classes and compute resources."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def problems(self) -> Sequence[str]:
        """Why nothing can be decided now."""
        return self._known.problems()

    def decide(self, request: AdmissionRequest) -> Awaitable[AdmissionResponse]:
        """The answer; the request itself is needed no more once this has returned.

        What is awaited raises PortError where no decision can be made.
        """
        if not self._known.synced.is_set():
            return _cannot("; ".join(self.problems()))
        return _known(self._decided(request))

    def _decided(self, request: AdmissionRequest) -> AdmissionResponse:
        asked = (request.resource.group, request.resource.resource, request.operation)
        if asked != _CREATED or request.sub_resource or request.object is None:
            return AdmissionResponse(uid=request.uid, allowed=True)
        try:
            found = bound_pod(request.object, self._known.raw_names)
        except PodError as error:
            return _denied(request.uid, Status(code=400, reason="BadRequest", message=str(error)))
        except NotBindableError as error:
            return _denied(request.uid, Status(code=403, reason="Forbidden", message=str(error)))
        return _allowed(request.uid, found)


def _allowed(uid: str, found: BoundPod) -> AdmissionResponse:
    if not found.bound:
        return AdmissionResponse(uid=uid, allowed=True)
    listed = "; ".join(f"{name}: {bound_text(one)}" for name, one in sorted(found.bound.items()))
    answer = AdmissionResponse(
        uid=uid,
        allowed=True,
        audit_annotations={"bound": listed[:MOST_AUDITED]},
        warnings=[note[:MOST_WARNING] for note in found.notes] or msgspec.UNSET,
    )
    if not found.patch:
        return answer
    patch = base64.b64encode(msgspec.json.encode(found.patch)).decode()
    return msgspec.structs.replace(answer, patch=patch, patch_type="JSONPatch")


def _denied(uid: str, status: Status) -> AdmissionResponse:
    return AdmissionResponse(uid=uid, allowed=False, status=status)


async def _known(answer: AdmissionResponse) -> AdmissionResponse:
    return answer


async def _cannot(problem: str) -> AdmissionResponse:
    raise PortError(problem, "it is asked again soon")
