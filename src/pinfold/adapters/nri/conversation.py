"""What a runtime asks, handed to the one who decides, and answered."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from pinfold.adapters.nri import nri_pb2 as wire
from pinfold.adapters.nri.counters import PluginCounters
from pinfold.adapters.nri.messages import (
    adjustment_message,
    seen_container,
    seen_resources,
    seen_sandbox,
    update_messages,
)
from pinfold.adapters.nri.session import (
    DEADLINE_EXCEEDED,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    UNKNOWN,
    CallFailedError,
    Request,
    Server,
)
from pinfold.adapters.nri.updates import Updates
from pinfold.ports.nri import (
    Container,
    ContainerUpdate,
    PodSandbox,
    RefusedError,
    RuntimeEvents,
)

_PLUGIN: Final = "nri.pkg.api.v1alpha1.Plugin"

_STATE_CHANGES: Final[Mapping[int, str]] = {
    wire.RUN_POD_SANDBOX: "RunPodSandbox",
    wire.STOP_POD_SANDBOX: "StopPodSandbox",
    wire.REMOVE_POD_SANDBOX: "RemovePodSandbox",
    wire.POST_CREATE_CONTAINER: "PostCreateContainer",
    wire.START_CONTAINER: "StartContainer",
    wire.POST_START_CONTAINER: "PostStartContainer",
    wire.POST_UPDATE_CONTAINER: "PostUpdateContainer",
    wire.REMOVE_CONTAINER: "RemoveContainer",
}
EVENTS: Final = sum(
    1 << (event - 1)
    for event in (
        *_STATE_CHANGES,
        wire.CREATE_CONTAINER,
        wire.UPDATE_CONTAINER,
        wire.STOP_CONTAINER,
    )
)
"""The event mask of everything that a RuntimeEvents is told."""

_MAY_FAIL: Final = frozenset(
    {
        "Synchronize",
        "RunPodSandbox",
        "CreateContainer",
        "PostCreateContainer",
        "StartContainer",
        "UpdateContainer",
    }
)
"""Where an error keeps something from running unplaced; elsewhere it would only stop a clean-up."""

IN_TIME: Final = 0.9
"""Of the time for Synchronize: its clock runs in the runtime, which took it off before we did."""

MOST_SYNCHRONIZED: Final = 100_000
"""How many pods and containers a runtime may tell of, all pieces together."""


class Conversation(Server):
    """One registration's requests.

    ``on_synchronized`` is called when the runtime has the answer to Synchronize, ``on_missed`` when
    that came too late for it.
    ``request_timeout`` (seconds, from Configure) is how long it waits where a request does not say.
    """

    def __init__(  # noqa: PLR0913 - who is asked, and three who are told
        self,
        events: RuntimeEvents,
        updates: Updates,
        counters: PluginCounters,
        *,
        report: Callable[[str], None],
        on_synchronized: Callable[[], None],
        on_missed: Callable[[], None],
    ) -> None:
        self._events = events
        self._updates = updates
        self._counters = counters
        self._report = report
        self._on_synchronized = on_synchronized
        self._on_missed = on_missed
        self.runtime = ""
        self.request_timeout: float | None = None
        self._pods: list[PodSandbox] = []
        self._containers: list[Container] = []
        self._told: Sequence[ContainerUpdate] = ()
        self._synchronized = False
        self._about = ""
        self._method = ""
        self._refused = False
        self._failed = False
        self._calls: Mapping[str, Callable[[bytes], Awaitable[bytes]]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create_container,
            "UpdateContainer": self._update_container,
            "StopContainer": self._stop_container,
            "StateChange": self._state_change,
            "Shutdown": self._shutdown,
        }
        self._pod_events: Mapping[str, Callable[[PodSandbox], Awaitable[None]]] = {
            "RunPodSandbox": events.run_pod_sandbox,
            "StopPodSandbox": events.stop_pod_sandbox,
            "RemovePodSandbox": events.remove_pod_sandbox,
        }
        self._container_events: Mapping[str, Callable[[PodSandbox, Container], Awaitable[None]]] = {
            "PostCreateContainer": events.post_create_container,
            "StartContainer": events.start_container,
            "PostStartContainer": events.post_start_container,
            "PostUpdateContainer": events.post_update_container,
            "RemoveContainer": events.remove_container,
        }

    # ------------------------------------------------------------------------------ every request

    def arrived(self, request: Request) -> None:
        """From now on the runtime carries out no update."""
        del request
        self._updates.asked()

    async def answer(self, request: Request) -> bytes:
        """Call the handler."""
        self._method, self._about, self._told = request.method, "", ()
        self._refused = self._failed = False
        known = {*self._calls, *self._pod_events, *self._container_events}
        if request.service != _PLUGIN or request.method not in known:
            raise CallFailedError(
                UNIMPLEMENTED, f"pinfold has no {request.service}/{request.method}"
            )
        if request.expired:
            # The runtime has gone on without an answer; to decide now would be about the past.
            raise CallFailedError(DEADLINE_EXCEEDED, "its turn came too late")
        try:
            with self._updates.handling():
                return await self._dispatch(request.method, request.payload)
        except CallFailedError:
            raise
        except DecodeError as error:
            raise CallFailedError(INVALID_ARGUMENT, f"{request.method}: {error}") from error
        except RefusedError as error:
            self._told = ()
            self._refused = True
            if self._method in {"CreateContainer", "UpdateContainer"}:
                raise CallFailedError(UNKNOWN, str(error)) from error
            self._report(f"{self._method}{self._about}: cannot be refused: {error}")
        except Exception as error:
            self._told = ()
            self._failed = True
            text = f"{type(error).__name__}: {error}"
            self._report(f"{self._method}{self._about} failed: {text}")
            if self._method in _MAY_FAIL:
                raise CallFailedError(UNKNOWN, f"pinfold failed: {text}") from error
        return b""

    def answered(self, request: Request) -> None:
        """Count, and say so when it took too long."""
        seconds = time.monotonic() - request.arrived
        timeout = request.timeout or self.request_timeout
        late = timeout is not None and seconds > timeout
        self._counters.methods[self._method or request.method].add(
            seconds, refused=self._refused, failed=self._failed, late=late
        )
        if late:
            self._report(
                f"{self._method}{self._about}: answered after {seconds:.2f} s, the runtime waits"
                f" {timeout:g} s: it has gone on without the answer, and is asked for everything"
                " anew (if this happens often, raise plugin_request_timeout of the runtime's NRI)"
            )
        self._updates.answered(self._told)
        if self._synchronized:
            self._synchronized = False
            if timeout is not None and seconds > timeout * IN_TIME:
                self._on_missed()
            else:
                self._on_synchronized()

    async def _dispatch(self, method: str, payload: bytes) -> bytes:
        if (call := self._calls.get(method)) is not None:
            return await call(payload)
        if method in self._pod_events:
            await self._pod_event(method, wire.PodEvent.FromString(payload).pod)
        else:
            event = wire.ContainerEvent.FromString(payload)
            await self._container_event(method, event.pod, event.container)
        return b""

    # ---------------------------------------------------------------------------- registration

    async def _configure(self, payload: bytes) -> bytes:
        request = wire.ConfigureRequest.FromString(payload)
        self.runtime = f"{request.runtime_name} {request.runtime_version}".strip()
        if request.request_timeout > 0:
            self.request_timeout = request.request_timeout / 1000
        return wire.ConfigureResponse(events=EVENTS).SerializeToString()

    async def _synchronize(self, payload: bytes) -> bytes:
        request = wire.SynchronizeRequest.FromString(payload)
        self._pods += map(seen_sandbox, request.pods)
        self._containers += map(seen_container, request.containers)
        if len(self._pods) + len(self._containers) > MOST_SYNCHRONIZED:
            self._pods, self._containers = [], []
            raise CallFailedError(
                RESOURCE_EXHAUSTED, f"more than {MOST_SYNCHRONIZED} pods and containers"
            )
        if request.more:
            return wire.SynchronizeResponse(more=True).SerializeToString()
        pods, self._pods = self._pods, []
        containers, self._containers = self._containers, []
        await self._events.synchronize(pods, containers)
        self._synchronized = True
        return b""

    async def _shutdown(self, payload: bytes) -> bytes:
        del payload
        self._report("the runtime shuts down")
        return b""

    # ---------------------------------------------------------------------------------- events

    async def _create_container(self, payload: bytes) -> bytes:
        request = wire.CreateContainerRequest.FromString(payload)
        pod, container = self._seen(request.pod, request.container)
        adjustment = await self._events.create_container(pod, container)
        answer = wire.CreateContainerResponse(adjust=adjustment_message(adjustment))
        return answer.SerializeToString()

    async def _update_container(self, payload: bytes) -> bytes:
        request = wire.UpdateContainerRequest.FromString(payload)
        pod, container = self._seen(request.pod, request.container)
        wanted = seen_resources(request.linux_resources)
        self._told = await self._events.update_container(pod, container, wanted)
        answer = wire.UpdateContainerResponse(update=update_messages(self._told))
        return answer.SerializeToString()

    async def _stop_container(self, payload: bytes) -> bytes:
        request = wire.StopContainerRequest.FromString(payload)
        pod, container = self._seen(request.pod, request.container)
        self._told = await self._events.stop_container(pod, container)
        answer = wire.StopContainerResponse(update=update_messages(self._told))
        return answer.SerializeToString()

    async def _state_change(self, payload: bytes) -> bytes:
        event = wire.StateChangeEvent.FromString(payload)
        self._method = _STATE_CHANGES.get(event.event, "StateChange")
        if self._method in self._pod_events:
            await self._pod_event(self._method, event.pod)
        elif self._method in self._container_events:
            await self._container_event(self._method, event.pod, event.container)
        return b""

    async def _pod_event(self, method: str, pod: wire.PodSandbox) -> None:
        self._about = f" of {pod.namespace}/{pod.name}"
        await self._pod_events[method](seen_sandbox(pod))

    async def _container_event(
        self, method: str, pod: wire.PodSandbox, container: wire.Container
    ) -> None:
        await self._container_events[method](*self._seen(pod, container))

    def _seen(
        self, pod: wire.PodSandbox, container: wire.Container
    ) -> tuple[PodSandbox, Container]:
        self._about = f" of {pod.namespace}/{pod.name}/{container.name}"
        return seen_sandbox(pod), seen_container(container)
