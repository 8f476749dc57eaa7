"""What ``deploy/kubernetes/quota`` makes in a real cluster, and teams whose CPUs it limits."""

from __future__ import annotations

from itertools import count
from typing import Any

import yaml

from pinfold.cluster.quota.known import ANNOTATION
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from tests.roots import ROOT
from tests.scenes.control_plane import ControlPlane
from tests.scenes.real_deployment import RealDeployment
from tests.scenes.replica_process import NAME
from tests.scenes.waiting import wait_until
from tests.scenes.webhook_world import pod

_TEAMS = count()
OVERLAYS = ROOT / "deploy" / "kubernetes" / "quota" / "overlays"


def counted(pod: dict[str, Any]) -> int:
    """The exclusive CPUs of a pod of these tests; counted apart from the code that is tested."""
    if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    return sum(int(one["resources"]["requests"]["cpu"]) for one in pod["spec"]["containers"])


class RealQuota(RealDeployment):
    """The deployment, and teams with quotas."""

    def __init__(self, control: ControlPlane) -> None:
        words = () if control.version >= (1, 34) else ("--no-claims",)
        super().__init__(control, NAME, OVERLAYS, command=("quota", "serve"), words=words)

    # -------------------------------------------------------------------------------- teams

    def team(self, cpus: int, **hard: str) -> Team:
        """A namespace with a quota that is in force."""
        found = Team(self, f"team-{next(_TEAMS)}")
        self.control.make_namespace(found.name)
        found.limit(cpus, **hard)
        wait_until(lambda: found.used == 0, 60)
        return found

    def team_without_replica(self, cpus: int = 2) -> Team:
        """One whose quota nobody counts yet."""
        found = Team(self, f"team-{next(_TEAMS)}")
        self.control.make_namespace(found.name)
        found.limit(cpus)
        return found


class Team:
    """A namespace with a quota."""

    def __init__(self, quota: RealQuota, name: str) -> None:
        self.control, self.name = quota.control, name

    def limit(self, cpus: int, **hard: str) -> None:
        names = {name.replace("_", "."): value for name, value in hard.items()}
        self.control.apply(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "cpus", "namespace": self.name},
                "spec": {"hard": {EXCLUSIVE_CPUS: str(cpus), **names}},
            }
        )
        wait_until(lambda: self.status.get("hard", {}).get(EXCLUSIVE_CPUS) == str(cpus), 60)

    @property
    def status(self) -> dict[str, Any]:
        found = self.control.get("resourcequota", "cpus", "-n", self.name)
        status: dict[str, Any] = found.get("status", {})
        return status

    @property
    def used(self) -> int:
        return int(self.status.get("used", {}).get(EXCLUSIVE_CPUS, -1))

    @property
    def is_reserved(self) -> bool:
        """Whether something is charged for pods that have not been seen yet."""
        found = self.control.get("resourcequota", "cpus", "-n", self.name)
        return '"held"' in found["metadata"].get("annotations", {}).get(ANNOTATION, "")

    @property
    def pods(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.control.get("pods", "-n", self.name)["items"]
        return items

    def pod(self, name: str, cpus: int, **metadata: Any) -> dict[str, Any]:
        """One of it, as a client sends it."""
        made = pod(name, cpus=str(cpus), **metadata)
        for field in ("uid", "creationTimestamp"):
            del made["metadata"][field]
        made["metadata"]["namespace"] = self.name
        if not name:
            del made["metadata"]["name"]
        return made

    def create(
        self, name: str, cpus: int, *words: str, status: int | None = 0, **metadata: Any
    ) -> str:
        """What kubectl says."""
        given = yaml.safe_dump(self.pod(name, cpus, **metadata))
        return self.control.kubectl("create", "-f", "-", *words, given=given, status=status)

    def settles_at(self, cpus: int) -> None:
        """Wait until so many are in use by its status."""
        wait_until(lambda: self.used == cpus, 100)
