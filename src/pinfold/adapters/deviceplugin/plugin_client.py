"""Calls to one device plugin: none hangs for ever, and each failure names resource and method.

Source: upstream ``pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go`` and ``endpoint.go``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from pinfold.adapters.deviceplugin.registration_rules import printable
from pinfold.core.devices.devices import PreferenceQuestion
from pinfold.ports.devices import DevicePluginError

_SERVICE: Final = "/v1beta1.DevicePlugin/"
_LONGEST_REASON: Final = 500
_SEE_PLUGIN: Final = "see the plugin's log"

M = TypeVar("M", bound=Message)


class PluginLimits(Struct, frozen=True):
    """How long a plugin may take, in seconds, and how much it may send.

    ``dial`` is for its socket to be there and to answer, ``options``, ``preferred``, ``allocate``
    and ``pre_start`` are for those calls, ``first_list`` is for the first list after a
    registration.  ``info`` and ``notify`` are for sockets of the registry.  After ``grace`` a
    resource without its plugin is given up.  Between two lists of one plugin are ``list_pause``
    seconds; of those that came meanwhile the last one counts.  ``look`` is the time between looks
    at the files.  ``message_bytes`` is the largest message.  ``resources`` may be offered by all
    plugins together, those that have gone counted until their grace is over.  ``asked_at_once``
    sockets of the registry are asked at the same time.

    The kubelet dials for 10 s, gives PreStartContainer 30 s, GetInfo 1 s, a notification 5 s, a
    stopped plugin 5 minutes, takes messages of 4 MiB, and knows no other limits.
    """

    dial: float = 10.0
    options: float = 10.0
    first_list: float = 30.0
    preferred: float = 10.0
    allocate: float = 30.0
    pre_start: float = 30.0
    info: float = 1.0
    notify: float = 5.0
    grace: float = 300.0
    list_pause: float = 0.05
    look: float = 0.25
    message_bytes: int = 16 << 20
    resources: int = 256
    asked_at_once: int = 64


class PluginOptions(Struct, frozen=True):
    """What a plugin offers beyond listing and allocating."""

    pre_start_required: bool = False
    preferred_allocation: bool = False

    @classmethod
    def of(cls, options: pb.DevicePluginOptions) -> PluginOptions:
        """Read the message."""
        return cls(options.pre_start_required, options.get_preferred_allocation_available)


class PluginClient:
    """One plugin at a socket, for one event loop."""

    def __init__(self, resource: str, path: Path, limits: PluginLimits) -> None:
        self.resource = resource
        self.path = path
        self.limits = limits
        self._channel = open_channel(path, limits)
        method = self._channel.unary_unary
        # Bytes in, bytes out: so that an answer that is none is an error of ours.
        self._options: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        self._options = method(f"{_SERVICE}GetDevicePluginOptions")
        self._preferred: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        self._preferred = method(f"{_SERVICE}GetPreferredAllocation")
        self._allocate: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        self._allocate = method(f"{_SERVICE}Allocate")
        self._pre_start: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        self._pre_start = method(f"{_SERVICE}PreStartContainer")
        self._watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        self._watch = self._channel.unary_stream(f"{_SERVICE}ListAndWatch")

    async def dial(self) -> None:
        """Connect, however often it takes; raises DevicePluginError."""
        try:
            async with asyncio.timeout(self.limits.dial):
                await self._channel.channel_ready()
        except TimeoutError:
            raise DevicePluginError(
                f"{self.resource}: failed to dial device plugin: {self.path} did not answer within "
                f"{self.limits.dial:g} s",
                "see that the plugin runs and listens there before it registers",
            ) from None

    async def get_options(self) -> PluginOptions | None:
        """What the plugin offers, None if it has no such method; raises DevicePluginError."""
        method = "GetDevicePluginOptions"
        try:
            data = await self._options(b"", timeout=self.limits.options)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise self._failure(method, error, self.limits.options) from None
        return PluginOptions.of(self._parsed(method, data, pb.DevicePluginOptions))

    async def lists(self) -> AsyncIterator[bytes]:
        """The messages of ListAndWatch, until the plugin or its socket ends.

        Raises:
            DevicePluginError: why there are no more.
        """
        call = self._watch(b"")
        try:
            async for data in call:
                yield data
        except grpc.aio.AioRpcError as error:
            raise self._failure("ListAndWatch", error, None) from None
        finally:
            call.cancel()

    async def preferred_allocation(self, question: PreferenceQuestion) -> tuple[str, ...]:
        """The ids that the plugin would rather give away; none if it has no wish.

        Raises:
            DevicePluginError: it failed.
        """
        method = "GetPreferredAllocation"
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=question.available,
                    must_include_deviceIDs=question.must_include,
                    allocation_size=question.size,
                )
            ]
        )
        data = await self._call(method, self._preferred, request, self.limits.preferred)
        answers = self._parsed(method, data, pb.PreferredAllocationResponse).container_responses
        return tuple(answers[0].deviceIDs) if answers else ()

    async def allocate(self, device_ids: Sequence[str]) -> bytes:
        """The serialized ``ContainerAllocateResponse``, with what is not known in it.

        Raises:
            DevicePluginError: it failed, or answered for no container.
        """
        method = "Allocate"
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=device_ids)]
        )
        data = await self._call(method, self._allocate, request, self.limits.allocate)
        answers = self._parsed(method, data, pb.AllocateResponse).container_responses
        if len(answers) != 1:
            raise DevicePluginError(
                f"{self.resource}: Allocate for one container was answered for {len(answers)}",
                _SEE_PLUGIN,
            )
        return answers[0].SerializeToString(deterministic=True)

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        """Have the devices prepared; raises DevicePluginError."""
        method = "PreStartContainer"
        request = pb.PreStartContainerRequest(devices_ids=device_ids)
        data = await self._call(method, self._pre_start, request, self.limits.pre_start)
        self._parsed(method, data, pb.PreStartContainerResponse)

    async def close(self) -> None:
        """End the connection, and with it every call."""
        await self._channel.close(None)

    async def _call(
        self,
        method: str,
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes],
        request: Message,
        seconds: float,
    ) -> bytes:
        try:
            return await ask(request.SerializeToString(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise self._failure(method, error, seconds) from None
        except grpc.aio.UsageError:
            raise self._gone(method) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not we are cancelled, but the call: its connection was closed.
            raise self._gone(method) from None

    def _gone(self, method: str) -> DevicePluginError:
        return DevicePluginError(
            f"{self.resource}: {method}: the plugin has gone or was replaced meanwhile", _SEE_PLUGIN
        )

    def _parsed(self, method: str, data: bytes, answer: type[M]) -> M:
        try:
            return answer.FromString(data)
        except DecodeError:
            raise DevicePluginError(
                f"{self.resource}: {method} was answered with {len(data)} bytes that are no "
                f"{answer.__name__}",
                _SEE_PLUGIN,
            ) from None

    def _failure(
        self, method: str, error: grpc.aio.AioRpcError, seconds: float | None
    ) -> DevicePluginError:
        where = f"{self.resource}: {method}"
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and seconds is not None:
            return DevicePluginError(f"{where} was not answered within {seconds:g} s", _SEE_PLUGIN)
        return DevicePluginError(f"{where}: {rpc_error(error)}", _SEE_PLUGIN)


def open_channel(path: Path, limits: PluginLimits) -> grpc.aio.Channel:
    """A connection of its own to a socket."""
    return grpc.aio.insecure_channel(
        f"unix:{quote(str(path))}",
        options=(
            ("grpc.max_receive_message_length", limits.message_bytes),
            ("grpc.max_send_message_length", limits.message_bytes),
            ("grpc.initial_reconnect_backoff_ms", 100),
            # So long may one attempt take: a busy machine answers late.
            ("grpc.min_reconnect_backoff_ms", 3000),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # Servers refuse an authority with the slashes of a socket's path in it.
            ("grpc.default_authority", "localhost"),
            ("grpc.enable_http_proxy", 0),
            # What was learnt of an earlier plugin at this path must not count for this one.
            ("grpc.use_local_subchannel_pool", 1),
            # An answer comes once; to ask twice is not ours to decide.
            ("grpc.enable_retries", 0),
        ),
    )


def rpc_error(error: grpc.aio.AioRpcError) -> str:
    """A failure in the words of Go's ``status`` package, in one line."""
    code = error.code().name.title().replace("_", "")
    reason = " ".join(printable(error.details() or "").split())
    return f"rpc error: code = {code} desc = {reason[:_LONGEST_REASON]}"
