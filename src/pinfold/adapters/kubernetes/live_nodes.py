"""Nodes of a running cluster, read with the rights of who asks; nothing is written.

Every request is in the table of ``live_reads.py``.  Source: the Kubernetes API (1.36), and the
documented order in which a kubelet admits pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.connection import Asked
from pinfold.adapters.kubernetes.live_reads import (
    GET_CONFIGZ,
    GET_NODE,
    GET_POD,
    GET_PUBLISHED,
    GET_TOPOLOGY,
    LIST_NODES,
    LIST_PODS,
    Read,
)
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.adapters.kubernetes.published_node import NAMESPACE, Published, published_of
from pinfold.core.values.name_patterns import is_pattern, named
from pinfold.ports.kubernetes import (
    CONFIG_MAPS,
    NODE_RESOURCE_TOPOLOGIES,
    NODES,
    PODS,
    KubernetesError,
    NotFoundError,
    Object,
)

MAX_NODES: Final = 5_000
"""As many as Kubernetes says that a cluster may have."""
MAX_PODS: Final = 10_000
"""On one node."""
TIMEOUT: Final = 30.0
"""Seconds for a request, all in all."""
CONNECTIONS: Final = 16
"""Requests at once."""

_MIRROR: Final = "kubernetes.io/config.mirror"
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_FORBIDDEN: Final = 403
_UNAUTHORIZED: Final = 401

T = TypeVar("T")


class LiveNode(Struct, frozen=True):
    """A node as the API server has it.

    ``pods`` are those on it that have not ended, as Pods in the order in which its kubelet has
    admitted them; ``published``, ``configz`` and ``topology`` are None where they are not there or
    were not asked for, and ``unread`` says why what agents publish could not be read.
    """

    name: str
    node: Object
    pods: tuple[Object, ...]
    ended: int = 0
    published: Published | None = None
    configz: Object | None = None
    topology: Object | None = None
    unread: str = ""


class Wanted(Struct, frozen=True):
    """What to read.

    ``names``: of nodes, or patterns such as ``gpu-*``; none: all nodes.  ``pods``: namespace and
    name of pods that are wanted as well, also where they have ended.
    """

    names: tuple[str, ...] = ()
    pods: tuple[tuple[str, str], ...] = ()
    configz: bool = False
    topology: bool = False


class ReadNodes(Struct, frozen=True):
    """What was read; ``pods`` are those that were asked for by name."""

    nodes: tuple[LiveNode, ...]
    pods: tuple[Object, ...] = ()


async def read_nodes(
    access: Access,
    wanted: Wanted,
    heard: Callable[[Asked], None],
    *,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - of each request
) -> ReadNodes:
    """Read nodes and what runs on them.

    Args:
        access: the server, and who asks.
        wanted: what to read.
        heard: told of each request when it is over.
        timeout: seconds for a request.

    Raises:
        KubernetesError: the server cannot be reached or refuses, with the rule to add where a right
            is missing; there is no such node; or an answer is none of Kubernetes.
    """
    client = KubeObjects(access, timeout=timeout, connections=CONNECTIONS, heard=heard)
    try:
        return await _Reading(client, wanted).read()
    finally:
        await client.close()


class _Reading:
    def __init__(self, client: KubeObjects, wanted: Wanted) -> None:
        self._client = client
        self._wanted = wanted
        # Fewer at once than connections: a request that waits for one is not timed for that.
        self._turn = asyncio.Semaphore(CONNECTIONS // 2)
        # What has ended it: nothing is asked after that, and what is under way comes to its end.
        self._failed: KubernetesError | None = None

    async def read(self) -> ReadNodes:
        pods = await _all(
            self._pod(namespace, name) for namespace, name in dict.fromkeys(self._wanted.pods)
        )
        names = self._wanted.names or tuple(
            dict.fromkeys(filter(None, (_text(pod, "spec", "nodeName") for pod in pods)))
        )
        if pods and not names:
            raise KubernetesError(
                f"pod {_name(pods[0])} is on no node yet", "say of which one: --node NAME"
            )
        nodes = await self._nodes(names)
        return ReadNodes(tuple(await _all(map(self._tried, nodes))), tuple(pods))

    async def _tried(self, node: Object) -> LiveNode:
        try:
            return await self._live(node)
        except KubernetesError as error:
            self._failed = self._failed or error
            raise

    async def _nodes(self, names: Sequence[str]) -> list[Object]:
        plain = [name for name in names if not is_pattern(name)]
        found: dict[str, Object] = {}
        if len(plain) < len(names) or not names:
            listed = await self._allowed(
                LIST_NODES, lambda: self._client.selected(NODES, "", MAX_NODES)
            )
            asked = f"{self._client.server}, asked for all nodes"
            everybody = {_name(one): one for one in (_object(node, asked) for node in listed)}
            for pattern in names:
                some = {name: everybody[name] for name in named(pattern, everybody)}
                if not some and is_pattern(pattern):
                    raise KubernetesError(f"--node {pattern}: no node of the cluster is called so")
                found |= some
            found = found if names else everybody
            if not found:
                raise KubernetesError(f"{self._client.server}: the cluster has no nodes")
        missing = [name for name in plain if name not in found]
        for one in await _all(map(self._node, missing)):
            found[_name(one)] = one
        return list(found.values())

    async def _node(self, name: str) -> Object:
        try:
            got = await self._allowed(GET_NODE, lambda: self._client.get(NODES, name))
        except NotFoundError:
            raise KubernetesError(
                f"--node {name}: {self._client.server} knows no such node",
                "pods of manifests: name their files; a machine: --node NAME=MACHINE",
                status=404,
            ) from None
        return self._named(name, got)

    def _named(self, name: str, got: Object) -> Object:
        """The object that was asked for by this name; raises KubernetesError where it is none."""
        found = _object(got, f"{self._client.server}, asked for {name}")
        if _name(found) != name:
            raise KubernetesError(
                f"{self._client.server}, asked for {name}, answers with {_name(found)[:80]!r}",
                "is it an API server?",
            )
        return found

    async def _pod(self, namespace: str, name: str) -> Object:
        try:
            got = await self._allowed(GET_POD, lambda: self._client.get(PODS, name, namespace))
        except NotFoundError:
            raise KubernetesError(
                f"{self._client.server} knows no pod {namespace}/{name}", status=404
            ) from None
        return {"apiVersion": "v1", "kind": "Pod", **self._named(name, got)}

    async def _live(self, node: Object) -> LiveNode:
        name = _name(node)
        _check_selectable(name)
        selector = f"spec.nodeName={name}"
        listed, (published, unread), configz, topology = await _all(
            (
                self._allowed(LIST_PODS, lambda: self._client.selected(PODS, selector, MAX_PODS)),
                self._published(name),
                self._configz(name),
                self._topology(name),
            )
        )
        asked = f"{self._client.server}, asked for the pods of node {name}"
        pods = [_object(one, asked) for one in listed]
        alive = [one for one in pods if _text(one, "status", "phase") not in _ENDED]
        return LiveNode(
            name,
            {"apiVersion": "v1", "kind": "Node", **node},
            tuple(in_order(alive)),
            len(pods) - len(alive),
            published,
            configz,
            topology,
            unread,
        )

    async def _published(self, name: str) -> tuple[Published | None, str]:
        try:
            found = await self._allowed(
                GET_PUBLISHED, lambda: self._client.get(CONFIG_MAPS, name, NAMESPACE)
            )
        except NotFoundError:
            return None, ""
        except KubernetesError as error:
            if error.status != _FORBIDDEN:
                raise
            # It can be said with options: whoever does needs no right to this.
            return None, str(error)
        return published_of(found, f"ConfigMap {NAMESPACE}/{name}"), ""

    async def _configz(self, name: str) -> Object | None:
        if not self._wanted.configz:
            return None
        return await self._allowed(GET_CONFIGZ, lambda: self._client.proxied(name, "configz"))

    async def _topology(self, name: str) -> Object | None:
        if not self._wanted.topology:
            return None
        try:
            return await self._allowed(
                GET_TOPOLOGY, lambda: self._client.get(NODE_RESOURCE_TOPOLOGIES, name)
            )
        except NotFoundError:
            return None

    async def _allowed(self, read: Read, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer; where a right is missing the error names the rule."""
        async with self._turn:
            if self._failed is not None:
                raise self._failed
            try:
                return await ask()
            except KubernetesError as error:
                if error.status == _FORBIDDEN:
                    remedy = read.remedy
                elif error.status == _UNAUTHORIZED:
                    remedy = "the token or certificate is not known or has expired"
                else:
                    raise
                raise KubernetesError(error.problem, remedy, status=error.status) from None


async def _all(asked: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """What all of them answer; raises what the first of them does, once none is under way."""
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def in_order(pods: Sequence[Object]) -> list[Object]:
    """Pods in the order in which their kubelet has admitted them, as far as the API tells.

    That is when it has seen them (``status.startTime``); those that it has not seen yet come last,
    by their creation.  Each of them says so in ``creationTimestamp``, by which plans are made, and
    has the uid by which its kubelet knows it.
    """
    latest = max((_started(pod) for pod in pods), default="")

    def when(pod: Object) -> tuple[str, str, str]:
        created = _text(pod, "metadata", "creationTimestamp")
        return (_started(pod) or max(created, latest), created, _name(pod))

    ordered = sorted(pods, key=when)
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            **pod,
            "metadata": {
                **pod["metadata"],
                "creationTimestamp": when(pod)[0] or None,
                "uid": kubelets_uid(pod) or None,
            },
        }
        for pod in ordered
    ]


def kubelets_uid(pod: Mapping[str, Any]) -> str:
    """The uid by which kubelet and runtime know a pod: of a static pod not the API server's."""
    metadata = _mapping(pod, "metadata")
    mirrored = _mapping(metadata, "annotations").get(_MIRROR)
    return mirrored if isinstance(mirrored, str) else _text(pod, "metadata", "uid")


def _started(pod: Mapping[str, Any]) -> str:
    return _text(pod, "status", "startTime")


def _object(found: object, asked: str) -> Object:
    """An object of an answer; raises KubernetesError where it is none.

    ``asked``: who has answered what, for the message.
    """
    if isinstance(found, dict) and isinstance(found.get("metadata"), dict) and _name(found):
        return found
    raise KubernetesError(f"{asked}: an object has no name", "is it an API server?")


def _name(found: Mapping[str, Any]) -> str:
    return _text(found, "metadata", "name")


def _text(found: Mapping[str, Any], part: str, name: str) -> str:
    """A text in a part of an object; "" where it is none."""
    value = _mapping(found, part).get(name)
    return value if isinstance(value, str) else ""


def _mapping(found: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    value = found.get(part)
    return value if isinstance(value, dict) else {}


def _check_selectable(name: str) -> None:
    """Refuse a name with which a field selector would be another one."""
    if not set(name).isdisjoint(",=!\\ "):
        raise KubernetesError(f"{name!r} is not the name of a node", status=400)
