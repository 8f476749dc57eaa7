"""The requests of the webhook and the controller, as rights of RBAC.

``deploy/kubernetes/quota`` gives these and no others; the tests compare both with what is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pinfold.cluster.rights import LEASE, WATCHED, Right, own_certificates

RIGHTS: Final[Mapping[str, tuple[Right, ...]]] = {
    "": (
        Right("", "resourcequotas", ("get", *WATCHED)),
        Right("", "resourcequotas/status", ("update",)),
        Right("", "pods", ("get", *WATCHED)),
        Right("resource.k8s.io", "resourceclaims", ("get", *WATCHED)),
        Right("resource.k8s.io", "resourceclaimtemplates", WATCHED),
        *LEASE,
    ),
    "own-certificates": own_certificates("validatingwebhookconfigurations"),
}
"""By the component of the kustomization that gives them; "": the base."""
