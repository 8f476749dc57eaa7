"""Asks a kubelet for its devices and for those of pods, over its podresources socket.

Source: upstream ``apis/podresources`` (1.26 to 1.36).  ``Get`` is not in every kubelet: 1.26 has
none, later ones refuse it unless the feature gate ``KubeletPodResourcesGet`` is on.  ``List`` is in
all of them, and so is ``GetAllocatableResources``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from pinfold.adapters.podresources_client import podresources_pb2 as wire
from pinfold.core.devices.devices import Device
from pinfold.linux.socket_places import check_length
from pinfold.ports.errors import PortError
from pinfold.ports.podresources import NO_DEVICES, Devices, PodDevices, PodName

DISABLED: Final = "Get method disabled"
"""In what a kubelet says to ``Get`` whose feature gate is off."""

RATE_LIMIT: Final = "rate limit"
"""In what a kubelet says that has had more than 100 requests in a second."""

PAUSE: Final = 0.02
"""Seconds before a kubelet is asked again that has refused by its limit."""

_SERVICE: Final = "/v1.PodResourcesLister/"
_OPTIONS: Final = (
    # What a kubelet's own clients take.
    ("grpc.max_receive_message_length", 16 << 20),
    # Servers refuse an authority with the slashes of a socket's path in it.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # Channels to the same address would share a connection, and its state, otherwise.
    ("grpc.use_local_subchannel_pool", 1),
)
_REMEDY: Final = "see what the kubelet does, or name its socket (kubeletPodResources)"

_Answer = TypeVar("_Answer", bound=Message)


class _FailedCallError(Exception):
    """gRPC's code and text."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


class PodResourcesClient:
    """One kubelet's podresources (``path`` is its socket), for one event loop.

    It is the :class:`pinfold.ports.podresources.PodDevicesSource` of a node with a kubelet.
    Nothing is opened before the first question.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._channel: grpc.aio.Channel | None = None
        self._without_get = False
        self._asking = asyncio.Lock()

    async def pod(self, namespace: str, name: str, within: float) -> PodDevices:
        """See :class:`pinfold.ports.podresources.PodDevicesSource`."""
        async with self._question(within):
            if not self._without_get:
                request = wire.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
                try:
                    got = await self._call("Get", request, wire.GetPodResourcesResponse)
                except _FailedCallError as error:
                    if error.code is grpc.StatusCode.UNKNOWN and "not found" in error.text:
                        return NO_DEVICES
                    if error.code is not grpc.StatusCode.UNIMPLEMENTED and (
                        DISABLED not in error.text
                    ):
                        raise
                    self._without_get = True
                else:
                    return _devices(got.pod_resources)
            return (await self._list()).get((namespace, name), NO_DEVICES)

    async def pods(self, within: float) -> Mapping[PodName, PodDevices]:
        """See :class:`pinfold.ports.podresources.PodDevicesSource`."""
        async with self._question(within):
            return await self._list()

    async def allocatable(self, within: float) -> Devices:
        """See :class:`pinfold.ports.podresources.PodDevicesSource`."""
        async with self._question(within):
            request, answer = wire.AllocatableResourcesRequest(), wire.AllocatableResourcesResponse
            found = await self._call("GetAllocatableResources", request, answer)
            return _by_resource(found.devices)

    async def close(self) -> None:
        """Let go of the connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _list(self) -> Mapping[PodName, PodDevices]:
        request = wire.ListPodResourcesRequest()
        listed = await self._call("List", request, wire.ListPodResourcesResponse)
        return {(pod.namespace, pod.name): _devices(pod) for pod in listed.pod_resources}

    @asynccontextmanager
    async def _question(self, within: float) -> AsyncIterator[None]:
        """Turn everything that can go wrong into one error."""
        try:
            check_length(self.path, _REMEDY)
            # One at a time: a channel that is closed would cancel the calls of others.
            async with asyncio.timeout(within), self._asking:
                yield
        except TimeoutError:
            raise PortError(f"{self.path}: no answer within {within:g} s", _REMEDY) from None
        except _FailedCallError as error:
            raise PortError(f"{self.path}: {error}", _REMEDY) from None
        except DecodeError:
            raise PortError(
                f"{self.path}: the answer is none of podresources v1", _REMEDY
            ) from None

    async def _call(self, method: str, request: Message, answer: type[_Answer]) -> _Answer:
        connected = self._channel is not None
        if not connected and not self.path.exists():
            # To find that out, a channel takes some milliseconds each time.
            raise _FailedCallError(grpc.StatusCode.UNAVAILABLE, "there is no such socket")
        while True:
            try:
                return answer.FromString(await self._raw(method, request))
            except grpc.aio.AioRpcError as error:
                failed = _FailedCallError(error.code(), error.details() or "")
            if failed.code is grpc.StatusCode.UNAVAILABLE:
                # A kubelet may have come back in between; a new channel does not wait to try.
                await self.close()
                if not connected:
                    raise failed
                connected = False
            elif failed.code is grpc.StatusCode.RESOURCE_EXHAUSTED and RATE_LIMIT in failed.text:
                await asyncio.sleep(PAUSE)
            else:
                raise failed

    async def _raw(self, method: str, request: Message) -> bytes:
        if self._channel is None:
            address = f"unix:{quote(str(self.path.absolute()))}"
            self._channel = grpc.aio.insecure_channel(address, options=list(_OPTIONS))
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            _SERVICE + method, request_serializer=bytes, response_deserializer=bytes
        )
        return await call(request.SerializeToString())


def _devices(pod: wire.PodResources) -> PodDevices:
    """The devices of a pod's containers."""
    return {container.name: _by_resource(container.devices) for container in pod.containers}


def _by_resource(entries: Iterable[wire.ContainerDevices]) -> Devices:
    """Devices of which a kubelet makes an entry for each of their NUMA nodes."""
    nodes: dict[str, dict[str, list[int]]] = {}
    for entry in entries:
        for device in entry.device_ids:
            near = nodes.setdefault(entry.resource_name, {}).setdefault(device, [])
            near.extend(node.ID for node in entry.topology.nodes)
    return {
        resource: tuple(
            Device(device, numa_nodes=tuple(sorted(set(near)))) for device, near in devices.items()
        )
        for resource, devices in nodes.items()
    }
