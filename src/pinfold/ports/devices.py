"""What a node needs of device plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from pinfold.core.devices.devices import DeviceInventory, DeviceRunOptions, PreferenceQuestion
from pinfold.ports.errors import PortError


class DevicePluginError(PortError):
    """A plugin refused, did not answer in time, or answered nonsense."""


class DevicePlugins(Protocol):
    """The plugins that have registered; a plugin that misbehaves harms only its own resource."""

    def inventory(self) -> DeviceInventory:
        """What the plugins list now."""

    def subscribe(self, changed: Callable[[DeviceInventory], None]) -> None:
        """Have ``changed`` called in the event loop whenever the inventory is another one."""

    async def preferred_allocation(self, question: PreferenceQuestion) -> Sequence[str]:
        """The ids that the plugin would rather give away.

        Raises:
            DevicePluginError: it gave no answer, or not one to this question.
        """

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> bytes:
        """Tell the plugin that a container is going to have these devices.

        Returns:
            The serialized ``ContainerAllocateResponse``, which can be read by :meth:`options`.

        Raises:
            DevicePluginError: the container must not start with these devices.
        """

    async def pre_start(self, resource: str, device_ids: Sequence[str]) -> None:
        """Let the plugin prepare its devices; right before each start of a container.

        Raises:
            DevicePluginError: the container must not start.
        """

    def options(self, response: bytes) -> DeviceRunOptions:
        """Read a serialized ``ContainerAllocateResponse``.

        Raises:
            DevicePluginError: it is none.
        """


@runtime_checkable
class CountsRegistrations(Protocol):
    """Device plugins that count how often they have registered."""

    def registrations(self) -> Mapping[str, int]:
        """Resource name -> registrations that were accepted since the agent started."""
