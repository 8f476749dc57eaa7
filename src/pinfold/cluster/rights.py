"""Rights of RBAC, as data: what is asked of an API server, and what the manifests give."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Right(Struct, frozen=True):
    """Verbs on a resource: of all namespaces, or of our own (``is_own``), of one name there."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    is_own: bool = False
    is_named: bool = False


WATCHED: Final = ("list", "watch")

LEASE: Final = (
    Right("coordination.k8s.io", "leases", ("create",), is_own=True),
    Right("coordination.k8s.io", "leases", ("get", "update"), is_own=True, is_named=True),
)
"""Of who elects a leader: :mod:`pinfold.cluster.lease`."""


def own_certificates(configurations: str) -> tuple[Right, ...]:
    """Of who makes its webhook's certificates and says so in that kind of configurations."""
    return (
        Right("", "secrets", ("create",), is_own=True),
        Right("", "secrets", ("get", "update"), is_own=True, is_named=True),
        Right("admissionregistration.k8s.io", configurations, ("get", "update"), is_named=True),
    )
