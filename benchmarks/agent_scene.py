"""A real agent in a temporary place, with everything that it started gone at the end."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.scenes.agent_process import AgentProcess

from benchmarks.effect_probe import Probe, build_probe
from pinfold.adapters.cgroup import CgroupError, open_cgroups
from pinfold.agent.front import Front, nothing_in_front
from pinfold.agent.service import Agent
from pinfold.agent.start import Start
from pinfold.agent.wiring import open_agent
from pinfold.config.agent import AgentConfig
from pinfold.config.section import agent_section
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.values.cpuset import CPUSet

CGROUPS: Final = Path("/sys/fs/cgroup")
HEAVIEST: Final = {"cpu.shares": "262144", "cpu.weight": "10000"}
LONGEST: Final = 120.0
"""Seconds that anything may take before a benchmark is given up."""


class NotHereError(Exception):
    """This machine, or this user, cannot run the benchmark."""


class GivenUpError(Exception):
    """What was waited for did not happen."""


def require_node() -> CPUSet:
    """The CPUs to be used.

    Raises:
        NotHereError: no agent can pin anything here.
    """
    if os.geteuid() != 0:
        raise NotHereError("needs root")
    cpus = CPUSet(os.sched_getaffinity(0))
    if len(cpus) < 2 or 0 not in cpus:
        raise NotHereError("needs CPU 0 and another one")
    try:
        open_cgroups()
    except CgroupError as error:
        raise NotHereError(f"needs a cgroup tree that can be written: {error}") from None
    return cpus


class Scene:
    """An agent, a probe to run in its pods, and a folder for what the pods write."""

    def __init__(self, folder: Path, agent: AgentProcess) -> None:
        self.folder = folder
        self.agent = agent
        self.probe: Probe = build_probe(folder)
        self._number = 0

    def apply(self, words: Sequence[str], cpus: str = "") -> str:
        """Start a pod that runs the probe, with so many CPUs; return its name."""
        self._number += 1
        name = f"pod-{self._number}"
        self.agent.apply(pod(name, (*self.probe.command, *words), cpus))
        return name

    def delete(self, name: str) -> None:
        """End a pod at once, and return when it is gone."""
        self.agent.client.delete(f"/v1/pods/default/{name}", grace=0)

    def wait_ended(self, name: str) -> None:
        """Wait for a pod that ends by itself to be remembered as ended."""
        deadline = time.monotonic() + LONGEST
        while self.agent.pod(name)["phase"] not in ("Succeeded", "Failed"):
            if time.monotonic() > deadline:
                raise GivenUpError(f"pod {name} does not end")
            time.sleep(0.01)

    def new_file(self) -> Path:
        """A file that is not there yet, for a pod's answer."""
        self._number += 1
        return self.folder / f"answer-{self._number}"

    def outweigh(self) -> None:
        """Give the agent's tree as a whole the greatest weight against everything beside it."""
        for folder in (CGROUPS, CGROUPS / "cpu"):
            for file, weight in HEAVIEST.items():
                if (place := folder / self.agent.name / file).exists():
                    place.write_text(weight, encoding="ascii")

    def pool_file(self) -> Path:
        """The kernel's file with the CPUs of the shared pool."""
        name = self.agent.name
        for folder in (CGROUPS / name, CGROUPS / "cpuset" / name):
            if (file := folder / "shared" / "cpuset.cpus").exists():
                return file
        found = [*CGROUPS.rglob(f"{name}/shared/cpuset.cpus")]
        if not found:
            raise GivenUpError(f"no cgroup of {name} below {CGROUPS}")
        return found[0]

    def idle_file(self) -> Path:
        """The same of those who run where nobody else does, which may not be there."""
        return self.pool_file().parent.with_name("idle") / "cpuset.cpus"


@contextmanager
def scene(
    own: Mapping[str, Any] | None = None,
    **config: Any,  # noqa: ANN401 - any key
) -> Iterator[Scene]:
    """Start an agent, with these keys of the configuration, and of its section, beside the usual.

    Raises:
        NotHereError: none can run here.
    """
    require_node()
    with tempfile.TemporaryDirectory(prefix="pinfold-bench-") as name:
        agent = AgentProcess(Path(name), **config)
        agent.config["pinfold"] |= own or {}
        try:
            agent.start()
            yield Scene(Path(name), agent)
        finally:
            agent.clean_up()


def pod(name: str, command: Sequence[str], cpus: str = "") -> dict[str, Any]:
    """A pod of one container that is never restarted; "" is BestEffort, else Guaranteed."""
    limits = {"cpu": cpus, "memory": "64Mi"} if cpus else {}
    container = {
        "name": "main",
        "command": list(command),
        "resources": {"limits": limits, "requests": limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def answer(file: Path) -> dict[str, float]:
    """What the probe has written, once it has.

    Raises:
        GivenUpError: it wrote nothing.
    """
    deadline = time.monotonic() + LONGEST
    while not file.exists():
        if time.monotonic() > deadline:
            raise GivenUpError(f"{file} was not written within {LONGEST:g} s")
        time.sleep(0.002)
    document: dict[str, float] = json.loads(file.read_text(encoding="ascii"))
    file.unlink()
    return document


@contextmanager
def agent_within(
    folder: str,
    node: NodeConfig,
    front: Front = nothing_in_front,
    **own: str,
) -> Iterator[tuple[asyncio.Runner, Agent]]:
    """An agent that is put together in this process as always, and not asked to serve.

    Args:
        folder: where its record and its socket are.
        node: what a kubelet is told.
        front: what stands in front of its ports.
        own: settings of its own, as they are in the file.
    """
    before = os.sched_getaffinity(0)
    settings = {"stateDir": folder, "socket": str(Path(folder, "s.sock")), **own}
    section = agent_section("the benchmark", settings)
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        try:
            opened = open_agent(Start(AgentConfig(node, section), front))
            agent = runner.run(stack.enter_async_context(opened))
            try:
                yield runner, agent
            finally:
                runner.run(agent.books.close())
                runner.run(stack.aclose())
        finally:
            os.sched_setaffinity(0, before)
