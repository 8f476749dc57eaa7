"""Which of the three agents the configuration asks for, from its start to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinfold.agent.front import Front, nothing_in_front
from pinfold.agent.live_kubelet import as_the_kubelet
from pinfold.agent.start import Start
from pinfold.config.agent import AgentConfig

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from pinfold.adapters.deviceplugin import PluginLimits
    from pinfold.agent.service import Agent


async def start_agent(
    config: AgentConfig,
    front: Front = nothing_in_front,
    plugin_limits: PluginLimits | None = None,
) -> None:
    """Put an agent together (see :class:`Start`), take over what runs, and serve.

    Raises:
        MismatchError: the record does not fit.
        NodeError: a configuration that does not fit the machine, or the kubelet that is there.
        PortError: the state directory, the cgroups or the socket cannot be used, or are another
            agent's; the runtime does not answer.
    """
    config = await as_the_kubelet(config)
    async with open_agent(Start(config, front, plugin_limits)) as agent:
        await agent.run()


def open_agent(start: Start) -> AbstractAsyncContextManager[Agent]:
    """An agent that has taken over what runs; at the end of the block all is closed."""
    # One of the three is loaded: gRPC and its messages take the others 13 MiB and 120 ms.
    match start.config.own.containers.runtime:
        case "process":
            from pinfold.agent.process import process_agent  # noqa: PLC0415 - 8.6 ms: one of three

            return process_agent(start)
        case "cri":
            from pinfold.agent.cri import cri_agent  # noqa: PLC0415 - 60 ms: one of three

            return cri_agent(start)
        case "nri":
            from pinfold.agent.nri import nri_agent  # noqa: PLC0415 - 62 ms: one of three

            return nri_agent(start)
