"""The version of the kubelet that is there, as the API server knows it of its node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.admission.model import NodeError
from pinfold.agent.api_access import access_of
from pinfold.agent.node_name import node_name
from pinfold.agent.reports import report_of_node
from pinfold.config.agent import AgentConfig
from pinfold.config.settings import SettingError, check
from pinfold.core.kubelet.versions import VersionSource, told_version
from pinfold.ports.errors import PortError

PATIENCE: Final = 5.0
"""Seconds; an API server that does not answer is no reason not to start."""


async def as_the_kubelet(config: AgentConfig) -> AgentConfig:
    """The configuration under the version of the kubelet that runs this node's pods.

    The same where no kubelet does, where the version is configured, and where it is not told.

    Raises:
        NodeError: this kubelet would not start with the configuration.
        KubernetesError: a kubeconfig is configured and cannot be used.
    """
    node = config.node
    if config.own.containers.runtime != "nri":
        return config
    if node.kubelet_version_from is VersionSource.CONFIGURATION:
        return config
    if (access := access_of(config.own)) is None:
        return config
    name = node_name(config.own)
    client = KubeClient(access, timeout=PATIENCE)
    try:
        version = _version(await client.get_node(name))
    except PortError as error:
        report_of_node(
            f"decided as kubelet {node.kubelet_version.shown}, the version of node {name}'s "
            f"kubelet is not known: {error}"
        )
        return config
    finally:
        await client.close()
    if not version:
        return config
    told = told_version(version)
    try:
        live = check(node.of_version(told, VersionSource.NODE))
    except SettingError as error:
        raise NodeError(
            str(error),
            "change the setting, or set kubeletVersion of the section pinfold",
            verdict=f"kubelet {version} of node {name} would not start",
        ) from None
    notes = (*config.notes, told.remark) if told.remark else config.notes
    return replace(config, node=live, notes=notes)


def _version(node: Mapping[str, Any]) -> str:
    """``status.nodeInfo.kubeletVersion`` of a Node; "" where it is not there."""
    found: Any = node
    for name in ("status", "nodeInfo", "kubeletVersion"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""
