"""The methods of the podresources services, with the kubelet's limit of their rate.

Source: upstream ``apis/podresources`` and ``apis/grpc/ratelimit.go`` (1.34 to 1.36).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from pinfold.adapters.podresources import messages
from pinfold.adapters.podresources import podresources_pb2 as v1
from pinfold.adapters.podresources import podresources_v1alpha1_pb2 as v1alpha1
from pinfold.ports.podresources import PodResourcesSource

SERVICE: Final = "v1.PodResourcesLister"
ALPHA_SERVICE: Final = "v1alpha1.PodResourcesLister"

QPS: Final = 100.0
"""Requests a second, of all clients and methods together (upstream ``DefaultQPS``)."""
BURST: Final = 10
"""Requests at once after a pause (upstream ``DefaultBurstTokens``)."""
LIMIT_EXCEEDED: Final = "rejected by rate limit"
NO_MESSAGE: Final = "grpc: failed to unmarshal the received message"

_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)


class TokenBucket:
    """Lets ``burst`` requests through at once, and ``qps`` a second in the long run.

    ``clock`` tells seconds, never going back.
    """

    def __init__(
        self, clock: Callable[[], float], *, qps: float = QPS, burst: float = BURST
    ) -> None:
        self._clock = clock
        self._qps = qps
        self._burst = float(burst)
        self._tokens = self._burst
        self._filled = clock()

    def allow(self) -> bool:
        """Take a token, if there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._qps)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def pod_resources_handlers(
    source: PodResourcesSource, limit: TokenBucket
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Handlers of both services for a ``grpc.aio`` server; they share one limit."""

    async def list_pods(
        _request: v1.ListPodResourcesRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> v1.ListPodResourcesResponse:
        return messages.list_response(source.pods())

    async def get_allocatable(
        _request: v1.AllocatableResourcesRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> v1.AllocatableResourcesResponse:
        return messages.allocatable_response(source.allocatable())

    async def get(
        request: v1.GetPodResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> v1.GetPodResourcesResponse:
        name, namespace = request.pod_name, request.pod_namespace
        pod = source.pod(namespace, name)
        if pod is None:
            # An error of Go's that is no gRPC status travels as code UNKNOWN.
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"pod {name} in namespace {namespace} not found"
            )
        return messages.get_response(pod)

    async def list_alpha(
        _request: v1alpha1.ListPodResourcesRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> v1alpha1.ListPodResourcesResponse:
        return messages.alpha_list_response(source.pods())

    def method(
        answer: Callable[[_Request, grpc.aio.ServicerContext[Any, Any]], Any],
        request: type[_Request],
        response: type[_Response],
    ) -> grpc.RpcMethodHandler[Any, Any]:
        async def limited(message: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> _Response:
            try:
                parsed = request.FromString(message)
            except DecodeError as error:
                await context.abort(grpc.StatusCode.INTERNAL, f"{NO_MESSAGE}: {error}")
            if not limit.allow():
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, LIMIT_EXCEEDED)
            answered: _Response = await answer(parsed, context)
            return answered

        return grpc.unary_unary_rpc_method_handler(
            limited,
            response_serializer=response.SerializeToString,
        )

    return (
        grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "List": method(list_pods, v1.ListPodResourcesRequest, v1.ListPodResourcesResponse),
                "GetAllocatableResources": method(
                    get_allocatable, v1.AllocatableResourcesRequest, v1.AllocatableResourcesResponse
                ),
                "Get": method(get, v1.GetPodResourcesRequest, v1.GetPodResourcesResponse),
            },
        ),
        grpc.method_handlers_generic_handler(
            ALPHA_SERVICE,
            {
                "List": method(
                    list_alpha, v1alpha1.ListPodResourcesRequest, v1alpha1.ListPodResourcesResponse
                )
            },
        ),
    )
