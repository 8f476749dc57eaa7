"""What an API server asks of an admission webhook, and what it is answered.

Source: ``admission.k8s.io/v1`` (AdmissionReview) and ``meta/v1`` (Status) of the Kubernetes API.
Fields that are of no matter here are passed over; a server may send more of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

MOST_WARNING: Final = 256
"""Characters of a warning that a client is shown for certain."""


class GroupVersionResource(Struct, frozen=True):
    """A resource of the API; the group is "" for the core's."""

    group: str
    version: str
    resource: str


class UserInfo(Struct, frozen=True):
    """Who asks the API server."""

    username: str = ""
    groups: tuple[str, ...] | None = None


class AdmissionRequest(Struct, frozen=True, rename="camel"):
    """One request to the API server, as it comes to admission.

    ``name`` is "" where the server is to make one of ``generateName``.  ``object`` is what is to be
    (None for a DELETE), ``old_object`` what is (None for a CREATE).
    """

    uid: str
    resource: GroupVersionResource
    operation: str
    sub_resource: str | None = ""
    name: str | None = ""
    namespace: str | None = ""
    user_info: UserInfo | None = None
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    dry_run: bool | None = False

    @property
    def path(self) -> str:
        """The resource with its subresource: ``pods/resize``."""
        sub = f"/{self.sub_resource}" if self.sub_resource else ""
        return f"{self.resource.resource}{sub}"


class AskedReview(Struct, frozen=True, rename="camel"):
    """An AdmissionReview as an API server sends it."""

    api_version: str
    kind: str
    request: AdmissionRequest | None = None


class Status(Struct, frozen=True, kw_only=True):
    """Why a request is refused: code, reason and message of the API server's answer."""

    message: str
    reason: str
    code: int


class AdmissionResponse(Struct, frozen=True, rename="camel", kw_only=True):
    """The answer; ``uid`` is the request's.

    ``patch`` is JSON in base64, of the kind that ``patch_type`` says; a mutating webhook has one.
    """

    uid: str
    allowed: bool
    patch: str | UnsetType = UNSET
    patch_type: Literal["JSONPatch"] | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    warnings: Sequence[str] | UnsetType = UNSET
    audit_annotations: Mapping[str, str] | UnsetType = UNSET


class AnsweredReview(Struct, frozen=True, rename="camel", kw_only=True):
    """An AdmissionReview as it goes back."""

    api_version: Literal["admission.k8s.io/v1"] = API_VERSION
    kind: Literal["AdmissionReview"] = KIND
    response: AdmissionResponse


class FailureStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """A ``Status`` as an answer of its own: no decision was made.

    An API server shows its message, and does what the webhook's ``failurePolicy`` says.
    """

    api_version: Literal["v1"] = "v1"
    kind: Literal["Status"] = "Status"
    status: Literal["Failure"] = "Failure"
    message: str
    reason: str
    code: int
