"""How a replica is run, whatever it serves."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from pinfold.adapters.kubernetes.access import Access
from pinfold.cluster.certificates.keeper import Names
from pinfold.core.classes.placing import Preference


class ReplicaSettings(Struct, frozen=True, kw_only=True):
    """How a replica is run.

    Attributes:
        access: the API server.
        names: its namespace, and what belongs together there.
        identity: of this replica, for the election.
        listen: where API servers ask, ``HOST:PORT``.
        health_listen: where kubelets and Prometheus ask.
        certificates: the folder with ``tls.crt`` and ``tls.key``.
        makes_certificates: whether it makes them itself.
        client_authority: a file with the authority of those who may ask; None: whoever reaches it.
        drain: seconds for which it is asked still, once it is told to stop.
    """

    access: Access
    names: Names
    identity: str
    listen: str
    health_listen: str
    certificates: Path
    makes_certificates: bool
    client_authority: Path | None
    drain: float


class ClassSettings(Struct, frozen=True, kw_only=True):
    """What a replica needs besides that serves classes.

    Attributes:
        extender_listen: where a scheduler asks, ``HOST:PORT``.
        extender_address: the address of this replica for a scheduler, which the Service of the
            extender leads to while it leads; "" where nobody is to write that.
        extender_client_authority: as ``client_authority``, for schedulers.
        preference: which nodes suit better.
        cluster_resources: a file of what belongs to no node, which the leader publishes.
    """

    extender_listen: str
    extender_address: str
    extender_client_authority: Path | None
    preference: Preference
    cluster_resources: Path | None = None
