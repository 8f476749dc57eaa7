"""What a pod runs, beside its resources: commands, environment, restart policy, grace period.

Source: the Kubernetes API (``core/v1`` ``Container`` and ``PodSpec``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from pinfold.core.cpuset import CPUSet
from pinfold.core.pod import Container, Pod

DEFAULT_GRACE_PERIOD: Final = 30
"""Seconds between SIGTERM and SIGKILL unless the pod says otherwise."""


class RestartPolicy(Enum):
    """The API's ``RestartPolicy`` of a pod."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class Process:
    """What one container executes.

    ``argv`` is the API's ``command`` followed by ``args`` (empty: the image's own, which only a
    container runtime knows); ``working_dir`` None is the runtime's default.
    """

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A pod and what its containers execute (by container name, init containers too)."""

    pod: Pod
    processes: Mapping[str, Process]
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    grace_period: int = DEFAULT_GRACE_PERIOD

    def restarts(self, container: Container, exit_code: int) -> bool:
        """Whether a container that ended with this status is started again.

        A sidecar always is; an init container that succeeded never is.
        """
        if container.is_sidecar:
            return True
        is_init = any(c.name == container.name for c in self.pod.init_containers)
        if exit_code == 0 and (is_init or self.restart_policy is not RestartPolicy.ALWAYS):
            return False
        return self.restart_policy is not RestartPolicy.NEVER


def application_environment(
    pod: str, pod_uid: str, container: str, cpus: CPUSet | None
) -> dict[str, str]:
    """The variables that tell an application where it runs.

    CPUs of the shared pool change while it runs, so only exclusive ones are told this way.

    Args:
        pod: ``namespace/name``.
        pod_uid: its uid.
        container: the container's name.
        cpus: its exclusive CPUs, None on the shared pool.
    """
    env = {"PINFOLD_POD": pod, "PINFOLD_POD_UID": pod_uid, "PINFOLD_CONTAINER": container}
    if cpus is not None:
        count = str(len(cpus))
        env |= {"PINFOLD_CPUS": str(cpus), "PINFOLD_CPU_COUNT": count}
        # What OpenMP and Go programs read by themselves.
        env |= {
            "GOMP_CPU_AFFINITY": " ".join(str(cpu) for cpu in cpus),
            "OMP_NUM_THREADS": count,
            "GOMAXPROCS": count,
        }
    return env
