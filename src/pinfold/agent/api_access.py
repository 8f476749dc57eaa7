"""How an agent reaches the API server of its cluster."""

from __future__ import annotations

from pathlib import Path

from pinfold.adapters.kubernetes.access import (
    Access,
    in_cluster,
    is_in_cluster,
)
from pinfold.adapters.kubernetes.kubeconfig import from_kubeconfig
from pinfold.agent.reports import report_of_node
from pinfold.config.section import AgentSection
from pinfold.ports.errors import PortError


def access_of(section: AgentSection) -> Access | None:
    """The access of the configuration; None where there is none, or it cannot be used.

    Raises:
        KubernetesError: a kubeconfig is configured and cannot be used.
    """
    file = section.cluster.kubeconfig
    if file:
        return from_kubeconfig(Path(file))
    if file is not None or not is_in_cluster():
        return None
    try:
        return in_cluster()
    except PortError as error:
        report_of_node(f"the API server will be told nothing: {error}")
        return None
