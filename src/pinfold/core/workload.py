"""What a pod runs, beside its resources: commands, environment, restart policy, grace period.

Source: the Kubernetes API (``core/v1`` ``Container`` and ``PodSpec``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

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
