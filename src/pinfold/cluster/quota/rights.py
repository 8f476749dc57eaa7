"""The requests of the webhook and the controller, as rights of RBAC.

``deploy/kubernetes/quota`` gives these and no others; the tests compare both with what is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Right(Struct, frozen=True):
    """Verbs on a resource: of all namespaces, or of our own (``is_own``), of one name there."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    is_own: bool = False
    is_named: bool = False


_WATCHED: Final = ("list", "watch")

RIGHTS: Final[Mapping[str, tuple[Right, ...]]] = {
    "": (
        Right("", "resourcequotas", ("get", *_WATCHED)),
        Right("", "resourcequotas/status", ("update",)),
        Right("", "pods", ("get", *_WATCHED)),
        Right("resource.k8s.io", "resourceclaims", ("get", *_WATCHED)),
        Right("resource.k8s.io", "resourceclaimtemplates", _WATCHED),
        Right("coordination.k8s.io", "leases", ("create",), is_own=True),
        Right("coordination.k8s.io", "leases", ("get", "update"), is_own=True, is_named=True),
    ),
    "own-certificates": (
        Right("", "secrets", ("create",), is_own=True),
        Right("", "secrets", ("get", "update"), is_own=True, is_named=True),
        Right(
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            ("get", "update"),
            is_named=True,
        ),
    ),
}
"""By the component of the kustomization that gives them; "": the base."""
