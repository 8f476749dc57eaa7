"""Recorded pods: ``{uid, init, containers, resources}``; what is written is what a kubelet sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinfold.core.pod.pod import Container, Pod, PodResources
from pinfold.core.values.quantity import Quantity


def recorded_pod(fields: Mapping[str, Any]) -> Pod:
    """The pod."""
    whole = fields.get("resources")
    return Pod(
        uid=fields["uid"],
        name=fields["uid"],
        init_containers=tuple(map(_container, fields.get("init", ()))),
        containers=tuple(map(_container, fields["containers"])),
        resources=None if whole is None else PodResources(*_resources(whole)),
    )


def _container(fields: Mapping[str, Any]) -> Container:
    policy = "Always" if fields.get("sidecar") else None
    requests, limits = _resources(fields)
    return Container(fields["name"], requests, limits, restart_policy=policy)


def _resources(fields: Mapping[str, Any]) -> tuple[dict[str, Quantity], dict[str, Quantity]]:
    requests, limits = (
        {name: Quantity.parse(text) for name, text in (fields.get(key) or {}).items()}
        for key in ("requests", "limits")
    )
    return requests, limits
