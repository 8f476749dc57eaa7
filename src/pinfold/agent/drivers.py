"""What runs containers: the agent itself, a runtime that it tells to, or one for a kubelet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import structlog

from pinfold.agent.log_bounds import log_companion
from pinfold.agent.parts import GATES, LOGS, PODS, Claim, Companion, Parse, Ports, Report
from pinfold.config.agent import AgentConfig
from pinfold.core.values.cpuset import CPUSet
from pinfold.logs.folders import LogFolders
from pinfold.node.pods.containers import Containers
from pinfold.node.pods.manager import Manager
from pinfold.node.recovery.recovery import Restored
from pinfold.node.recovery.resumption import take_over
from pinfold.node.settings import ManagerSettings
from pinfold.ports.cgroups import Cgroups
from pinfold.ports.logs import BoundedLogs, PodLogs
from pinfold.ports.runtime import Runtime
from pinfold.ports.volumes import Volumes

if TYPE_CHECKING:
    from pinfold.ports.runtime import ProcessAdopter

CONTAINERS: Final = "containers"

log = structlog.get_logger("pinfold")


class Driver(Protocol):
    """What runs the containers, and how the manager deals with it."""

    @property
    def cgroups(self) -> Cgroups:
        """The port."""

    @property
    def runtime(self) -> Runtime:
        """The port."""

    @property
    def claim(self) -> Claim | None:
        """What no other agent may have; None: nothing that could be locked."""

    @property
    def describe_cgroups(self) -> Mapping[str, Any]:
        """What ``/v1/status`` says of the cgroups."""

    def containers(self, ports: Ports, settings: ManagerSettings, report: Report) -> Containers:
        """How the manager starts and ends them, on ports that may stand before the own ones."""

    def pool_changed(self, pool: CPUSet) -> None:
        """The shared pool is this now."""

    async def begin(
        self, manager: Manager, restored: Restored, *, parse: Parse
    ) -> Sequence[Companion]:
        """Let the manager go on from its record; what has to go on beside it.

        Raises:
            PortError: the record, the cgroups or the runtime cannot be used.
        """


async def open_driver(config: AgentConfig) -> Driver:
    """What the configuration asks for; nothing is changed yet.

    Raises:
        PortError: it is not there, or cannot be used.
    """
    if config.own.runtime == "cri":
        from pinfold.agent.cri_driver import open_cri  # noqa: PLC0415 - one of three

        return await open_cri(config)
    if config.own.runtime == "nri":
        from pinfold.adapters.cgroup.runtime_cgroups import RuntimeCgroups  # noqa: PLC0415
        from pinfold.agent.nri_driver import NriDriver  # noqa: PLC0415 - one of three

        gates = Path(config.own.state_dir) / GATES
        return NriDriver(config, RuntimeCgroups(gates=gates))
    return open_processes(config)


# -------------------------------------------------------------------------------------- processes


class ProcessDriver:
    """Containers are plain processes of the agent."""

    def __init__(  # noqa: PLR0913 - the parts, one each
        self,
        cgroups: Cgroups,
        runtime: Runtime,
        describe_cgroups: Mapping[str, Any],
        volumes: Volumes | None = None,
        logs: PodLogs | None = None,
        *,
        claim: Claim | None = None,
    ) -> None:
        self.claim = claim
        self.cgroups = cgroups
        self.runtime = runtime
        self.describe_cgroups = describe_cgroups
        self._volumes = volumes
        self._logs = logs

    def containers(self, ports: Ports, settings: ManagerSettings, report: Report) -> Containers:
        """See :class:`Driver`."""
        del report
        adopter = cast("ProcessAdopter", ports.runtime)
        return Containers(
            ports.cgroups,
            ports.runtime,
            settings,
            adopter,
            volumes=self._volumes,
            logs=self._logs,
        )

    def pool_changed(self, pool: CPUSet) -> None:
        """The processes are in the pool's own cgroup: there is nobody to tell."""

    async def begin(
        self, manager: Manager, restored: Restored, *, parse: Parse
    ) -> Sequence[Companion]:
        """See :class:`Driver`."""
        del parse
        await take_over(manager, restored)
        # Asked of what it was made with: a test may have put something in front of the runtime.
        return (log_companion(self.runtime),) if isinstance(self.runtime, BoundedLogs) else ()


def open_processes(config: AgentConfig) -> ProcessDriver:
    """The cgroups of this machine; where none can be written, affinities of our own processes.

    Raises:
        CgroupError: a cgroup parent was asked for and cannot be used.
    """
    from pinfold.adapters.affinity import Affinity  # noqa: PLC0415 - one of the two
    from pinfold.adapters.cgroup import CgroupError, open_cgroups  # noqa: PLC0415
    from pinfold.adapters.process import ProcessRuntime  # noqa: PLC0415 - one of three
    from pinfold.adapters.volumes import VolumeFolders  # noqa: PLC0415 - two of three

    state_dir = Path(config.own.state_dir)
    logs = LogFolders(state_dir / LOGS)
    runtime = ProcessRuntime(state_dir / CONTAINERS, log_root=logs.root, log_limits=config.logs)
    volumes = VolumeFolders(state_dir / PODS)
    try:
        cgroups = open_cgroups(config.own.cgroup_parent, config.own.cgroup_name)
    except CgroupError as error:
        if config.own.cgroup_parent is not None:
            raise
        affinity = Affinity()
        limitations = list(affinity.limitations())
        log.warning("weaker", problem=str(error), limitations=limitations)
        described = {"kind": "affinity", "limitations": limitations}
        return ProcessDriver(affinity, runtime, described, volumes, logs)
    return ProcessDriver(cgroups, runtime, cgroups.describe(), volumes, logs, claim=cgroups.claim)
