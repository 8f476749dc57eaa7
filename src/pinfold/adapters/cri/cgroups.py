"""Which cgroup a container gets.

Source: measured on containerd (``<parent>/<id>``, and ``cri-containerd-<id>.scope`` with systemd);
CRI-O's names are those of its documentation.
"""

from __future__ import annotations

from enum import Enum


class CgroupDriver(Enum):
    """Who makes the cgroups of a runtime."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


def pod_cgroup_parent(root: str, pod_uid: str, driver: CgroupDriver) -> str:
    """The ``cgroup_parent`` of a pod below ``root`` (one name, such as ``pinfold``).

    Both forms are cgroupfs paths, as the CRI wants them; with systemd each name is a slice and
    repeats those above it.
    """
    if driver is CgroupDriver.CGROUPFS:
        return f"/{root}/pod{_plain(pod_uid)}"
    # A dash means "below" in a slice's name.
    stem = root.replace("-", "_")
    return f"/{stem}.slice/{stem}-pod{_plain(pod_uid).replace('-', '_')}.slice"


def container_cgroup_path(
    cgroup_parent: str, container_id: str, driver: CgroupDriver, runtime_name: str = "containerd"
) -> str:
    """The path of a container's cgroup below each hierarchy's root (v1) or the root (v2)."""
    parent = cgroup_parent.rstrip("/")
    if driver is CgroupDriver.SYSTEMD:
        prefix = "crio" if runtime_name == "cri-o" else "cri-containerd"
        return f"{parent}/{prefix}-{container_id}.scope"
    name = f"crio-{container_id}" if runtime_name == "cri-o" else container_id
    return f"{parent}/{name}"


def _plain(uid: str) -> str:
    """A uid as one file name; those of manifests without one have a slash in them."""
    return uid.replace("/", "_")
