"""Pods are bound to nodes, and what they were given counts before a watch tells of it.

Who is being bound has what he wants from the moment at which it was found to be free; two who want
the last device are asked one after the other, as between that look and the note no other work is
done.  It is free again only once it is known that he did not get it: a request without an answer
may still be carried out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from msgspec import Struct

from pinfold.cluster.classes.holdings import Holdings, add
from pinfold.core.classes.placing import Wants
from pinfold.ports.kubernetes import (
    PODS,
    ConflictError,
    Kubernetes,
    KubernetesError,
    NotFoundError,
    Object,
)

DEADLINE: Final = 4.0
"""Seconds for a binding, after which the API server gives up, too: less than passes between the
moment at which a leader stops and that at which another one may lead (5)."""

REQUEST_SECONDS: Final = 60.0
"""After how long a request that was not answered is not carried out for certain."""

FIRST_LOOK: Final = 1.0
"""Seconds until it is looked up what became of a request without an answer."""

_ENDED: Final = frozenset({"Succeeded", "Failed"})

Key = tuple[str, str]
"""The uid of a pod, and a node."""


class Assumed(Struct):
    """A pod that is taken to be on a node.

    ``asked_at`` is when it was asked for last, ``due`` when to look what became of it, ``pause``
    how long to wait after that; ``under_way`` are the requests that may still be answered,
    ``is_bound`` says that one was carried out, ``is_unknown`` that one may still be.
    """

    namespace: str
    name: str
    wants: Wants
    asked_at: float
    due: float
    pause: float = FIRST_LOOK
    under_way: int = 0
    is_bound: bool = False
    is_unknown: bool = False


class Bindings:
    """What is assumed of pods that are being bound, and the requests that bind them.

    Args:
        client: the API server.
        holdings: what pods have, as far as a watch has told.
        report: told each problem when it begins or becomes another one.
        clock: seconds; None: the event loop's.
    """

    def __init__(
        self,
        client: Kubernetes,
        holdings: Holdings,
        report: Callable[[str], None] = lambda _problem: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._holdings = holdings
        self._report = report
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._assumed: dict[Key, Assumed] = {}
        self._nodes: dict[str, set[str]] = {}
        self._extra: dict[str, Counter[str]] = {}
        self._extra_of_cluster: Counter[str] = Counter()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._carried_out_by = -inf
        self._news = asyncio.Event()
        holdings.listeners.append(self._saw)

    def __len__(self) -> int:
        return len(self._assumed)

    # ------------------------------------------------------------------------------ what is taken

    def assumed(self, resource: str, uid: str) -> Mapping[str, int]:
        """What is assumed to be taken under a raw name by others than a pod, by node."""
        extra: Mapping[str, int] = self._extra.get(resource) or {}
        for node in self._nodes.get(uid, ()):
            wants = self._assumed[uid, node].wants
            own = sum(one.count for one in wants.of_node if one.resource == resource)
            extra = {**extra, node: extra.get(node, 0) - own}
        return extra

    def assumed_of_cluster(self, class_name: str, uid: str) -> int:
        """What is assumed to be taken of a class of the cluster level by others than a pod."""
        own = sum(
            dict(self._assumed[uid, node].wants.of_cluster).get(class_name, 0)
            for node in self._nodes.get(uid, ())
        )
        return self._extra_of_cluster[class_name] - own

    # ------------------------------------------------------------------------------ binding

    async def bind(
        self, pod: Object, node: str, wants: Wants, annotations: Mapping[str, str]
    ) -> None:
        """Assign a pod to a node that has what it wants: it counts as taken from now on.

        Nothing else is done between the call and that.

        Raises:
            KubernetesError: the server refuses; or nobody knows yet what became of it.
        """
        metadata = pod["metadata"]
        key = metadata["uid"], node
        self._assume(key, metadata, wants)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        request = asyncio.ensure_future(
            self._client.create(PODS, binding, "binding", within=DEADLINE)
        )
        self._under_way.add(request)
        answer: Object | KubernetesError | None = None
        try:
            answer = await request
        except KubernetesError as error:
            answer = error
            raise
        finally:
            self._under_way.discard(request)
            self._answered(key, answer)

    async def look_after(self) -> None:
        """Look up what became of requests and bindings of which no watch tells, for ever."""
        while True:
            self._news.clear()
            due = min((one.due for one in self._assumed.values()), default=None)
            try:
                pause = None if due is None else max(0.0, due - self._clock())
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                now = self._clock()
                for key in [key for key, one in self._assumed.items() if one.due <= now]:
                    await self._look_up(key)

    async def end(self) -> None:
        """Wait until nothing that was begun can be carried out, and assume nothing any more."""
        while self._under_way:
            await asyncio.wait(self._under_way)
            await asyncio.sleep(0)  # until who has asked has his answer
        await asyncio.sleep(max(0.0, self._carried_out_by - self._clock()))
        for key in list(self._assumed):
            self._drop(key)

    # ------------------------------------------------------------------------------ inside

    def _saw(self, uid: str) -> None:
        """Who is on a node as far as the watch knows, or is there no more, is assumed no more."""
        if self._holdings.get(uid) is None:
            self._forget(uid)
        else:
            self._saw_node(uid)

    def _saw_node(self, uid: str) -> None:
        held = self._holdings.get(uid)
        if held is not None and held.node:
            self._forget(uid)

    def _assume(self, key: Key, metadata: Mapping[str, Any], wants: Wants) -> None:
        if not (wants.of_node or wants.of_cluster):
            return
        now = self._clock()
        one = self._assumed.get(key)
        if one is None:
            one = Assumed(metadata["namespace"], metadata["name"], wants, now, now)
            self._assumed[key] = one
            self._nodes.setdefault(key[0], set()).add(key[1])
            self._count(key[1], wants, 1)
        one.asked_at = now
        one.due = now + REQUEST_SECONDS
        one.under_way += 1
        self._news.set()

    def _answered(self, key: Key, answer: Object | KubernetesError | None) -> None:
        """Note what became of a request; None: it was given up."""
        refusal = answer if isinstance(answer, KubernetesError) else None
        is_unknown = answer is None or (refusal is not None and not 400 <= refusal.status < 500)
        if is_unknown:
            self._carried_out_by = self._clock() + DEADLINE
        one = self._assumed.get(key)
        if one is None:
            return
        one.under_way -= 1
        one.is_unknown |= is_unknown
        one.is_bound |= answer is not None and refusal is None
        if is_unknown or isinstance(refusal, ConflictError):
            # Who is bound already may be on this node, if it was asked for twice.
            one.due = min(one.due, self._clock() + one.pause)
            self._news.set()
        elif refusal is not None and not (one.under_way or one.is_unknown or one.is_bound):
            self._drop(key)

    async def _look_up(self, key: Key) -> None:
        one, (uid, node) = self._assumed.get(key), key
        if one is None:
            return
        one.due = self._clock() + one.pause
        one.pause = min(2 * one.pause, REQUEST_SECONDS)
        try:
            pod = await self._client.get(PODS, one.name, one.namespace)
        except NotFoundError:
            self._forget(uid)
            return
        except KubernetesError as error:
            self._report(str(error))
            return
        self._report("")
        bound = pod["spec"].get("nodeName")
        if pod["metadata"]["uid"] != uid or (pod.get("status") or {}).get("phase") in _ENDED:
            self._forget(uid)
        elif bound:
            # It can be on no other node any more; on this one until the watch says so, too.
            for other in self._nodes.get(uid, set()) - {bound}:
                self._drop((uid, other))
            self._saw_node(uid)
        elif not (one.under_way or one.is_bound) and (
            not one.is_unknown or self._clock() >= one.asked_at + REQUEST_SECONDS
        ):
            self._drop((uid, node))

    def _forget(self, uid: str) -> None:
        for node in tuple(self._nodes.get(uid, ())):
            self._drop((uid, node))

    def _drop(self, key: Key) -> None:
        one = self._assumed.pop(key, None)
        if one is None:
            return
        uid, node = key
        self._nodes[uid].discard(node)
        if not self._nodes[uid]:
            del self._nodes[uid]
        self._count(node, one.wants, -1)

    def _count(self, node: str, wants: Wants, sign: int) -> None:
        for want in wants.of_node:
            extra = self._extra.setdefault(want.resource, Counter())
            add(extra, node, sign * want.count)
            if not extra:
                del self._extra[want.resource]
        for name, count in wants.of_cluster:
            add(self._extra_of_cluster, name, sign * count)
