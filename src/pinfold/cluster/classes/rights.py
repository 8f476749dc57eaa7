"""The requests of ``pinfold classes serve``, as rights of RBAC.

``deploy/kubernetes/serve-classes`` gives these and no others; the tests compare both with what is
asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pinfold.cluster.classes import publishing
from pinfold.cluster.rights import LEASE, WATCHED, Right, own_certificates

RIGHTS: Final[Mapping[str, tuple[Right, ...]]] = {
    "": (
        Right("pinfold.dev", "resourceclasses", WATCHED),
        Right("pinfold.dev", "computeresources", WATCHED),
        Right("pinfold.dev", "resourceclasses", ("get",)),
        Right("pinfold.dev", "resourceclasses/status", ("update",)),
        Right("", "pods", ("get", *WATCHED)),
        Right("", "pods/binding", ("create",)),
        *LEASE,
        Right("discovery.k8s.io", "endpointslices", ("create",), is_own=True),
        Right(
            "discovery.k8s.io",
            "endpointslices",
            ("get", "update", "delete"),
            is_own=True,
            is_named=True,
        ),
    ),
    "own-certificates": own_certificates("mutatingwebhookconfigurations"),
    "cluster-resources": publishing.RIGHTS,
}
"""By the component of the kustomization that gives them; "": the base."""
