"""What is asked of a manifest beside its being a valid pod: that this node can keep its word."""

from __future__ import annotations

from pinfold.adapters.process.credentials import credentials_of
from pinfold.core.pod.api import PodError
from pinfold.core.pod.security import Security
from pinfold.core.pod.workload import Workload
from pinfold.ports.errors import RuntimeFailedError


def check_rights(workload: Workload, *, attached: bool) -> None:
    """See that the processes of a pod can run with the rights that its manifest gives them.

    Args:
        workload: the pod.
        attached: its only process was started by somebody else, who has given it its rights.

    Raises:
        PodError: one cannot.
    """
    pod = workload.pod
    for key, containers in (
        ("initContainers", pod.init_containers),
        ("containers", pod.containers),
    ):
        for index, container in enumerate(containers):
            path = f"spec.{key}[{index}].securityContext"
            security = workload.processes[container.name].security
            if attached and security != Security():
                raise PodError(path, "the process that is taken over has the rights of its parent")
            try:
                credentials_of(security)
            except RuntimeFailedError as error:
                raise PodError(path, str(error)) from None
