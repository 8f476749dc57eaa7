"""What an API server fills in where nothing is said, as far as quotas and classes look at it."""

from __future__ import annotations

from pinfold.ports.kubernetes import Object


def defaulted(pod: Object) -> Object:
    """A pod in which each container requests what it is limited to, unless it says otherwise.

    As ``SetDefaults_Pod`` of Kubernetes (``pkg/apis/core/v1/defaults.go``).
    """
    spec = dict(pod.get("spec") or {})
    for name in ("initContainers", "containers"):
        if spec.get(name):
            spec[name] = [_requesting(one) for one in spec[name]]
    return {**pod, "spec": spec}


def _requesting(container: Object) -> Object:
    resources = container.get("resources") or {}
    if not (limits := resources.get("limits")):
        return container
    requests = {**limits, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}
