"""Containers through the Container Runtime Interface (``runtime.v1``): containerd, CRI-O."""

from pinfold.adapters.cri.client import CriClient, CriError
from pinfold.adapters.cri.endpoint import Endpoint, NoRuntimeError, find_endpoint, read_endpoint
from pinfold.adapters.cri.resources import CriRecord
from pinfold.adapters.cri.runtime import CriRuntime
from pinfold.adapters.cri.sandboxes import CriSettings
from pinfold.adapters.cri.seen import CriListing, list_cri_containers, tell_containers
from pinfold.adapters.cri.status import (
    CgroupDriver,
    RuntimeInfo,
    container_cgroup_path,
    pod_cgroup_parent,
    runtime_info,
    wait_for_runtime,
)

__all__ = [
    "CgroupDriver",
    "CriClient",
    "CriError",
    "CriListing",
    "CriRecord",
    "CriRuntime",
    "CriSettings",
    "Endpoint",
    "NoRuntimeError",
    "RuntimeInfo",
    "container_cgroup_path",
    "find_endpoint",
    "list_cri_containers",
    "pod_cgroup_parent",
    "read_endpoint",
    "runtime_info",
    "tell_containers",
    "wait_for_runtime",
]
