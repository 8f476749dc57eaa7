"""A node as its agent publishes it in the cluster: ``node.json`` of its ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinfold.documents.records import CPUs, Document


class PublishedNode(Document, frozen=True, kw_only=True):
    """How the agent of a node decides, and who has which CPUs there.

    Beside it is the machine, ``machine.json.gz``, as ``pinfold topology -o json`` prints it.
    """

    node: str
    """The node's name in the cluster."""
    program: str
    """The version of Pinfold there."""
    configuration: Mapping[str, Any]
    """A KubeletConfiguration with what the agent goes by; of its section ``pinfold`` what decides
    about pods, with the version of the kubelet as which it does."""
    reserved: CPUs
    shared: CPUs
    """The kubelet's default CPU set."""
    offline: CPUs = ""
    assignments: Mapping[str, Mapping[str, CPUs]]
    """The exclusive CPUs of containers, by the uid of their pod and their name."""
    bubbles: Mapping[str, CPUs] = {}
    """Those of pods that have them as a whole, by uid."""
