"""What an agent has is let go at its end, whatever fails of that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pinfold.adapters.store import DATABASE, SQLiteStore
from pinfold.agent.claims import RuntimeClaim
from pinfold.agent.start import Start
from pinfold.config.agent import AgentConfig
from pinfold.config.section import agent_section
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.ports.errors import PortError


class Unwilling:
    """What cannot be closed."""

    async def close(self) -> None:
        raise PortError("the runtime hangs", "wait")


class Groups(FakeCgroups):
    """Cgroups that know how they were closed."""

    closed: bool | None = None

    async def close(self, *, remove: bool) -> None:
        self.closed = remove
        await super().close(remove=remove)


@pytest.mark.parametrize("refused", [True, False])
def test_what_cannot_be_closed_keeps_nothing_else(tmp_path: Path, *, refused: bool) -> None:
    state = tmp_path / "state"
    settings = {"stateDir": str(state), "socket": str(tmp_path / "s.sock")}
    config = AgentConfig(NodeConfig(), agent_section("the test", settings))
    claim, cgroups = RuntimeClaim(tmp_path / "nri.sock"), Groups(CPUSet([0, 1]))

    async def live() -> None:
        start = Start(config)
        async with start.alone(claim, cgroups, Unwilling(), Unwilling()):
            start.open_record()
            if refused:
                raise PortError("another agent has it", "stop that one")

    with pytest.raises(PortError, match="the runtime hangs") as caught:
        asyncio.run(live())
    problems: list[str] = []
    error = caught.value.__context__
    while error is not None:
        problems.append(str(error))
        error = error.__context__
    assert refused == any("another agent has it" in problem for problem in problems)
    assert cgroups.closed is True
    assert not (tmp_path / "s.sock").exists()
    assert not (tmp_path / "pinfold.lock").exists()
    assert not state.exists(), "a record of an agent that never served is left"
    asyncio.run(SQLiteStore.open(tmp_path / DATABASE).close())
