"""The specifications of a kubelet's pods, for what a runtime does not show of them.

That is what a pod asks for as a whole (``spec.resources``), and which of its containers begin
before the others.  The API server is asked as soon as a pod's sandbox is there, and again for its
first container if that was in vain; who cannot be read then shares, for it may be of those whose
containers own nothing by themselves, as does everybody where there is no server.  It is asked
again when none of its containers runs any more, and when everything is shown anew.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from pinfold.admission.admission import Node
from pinfold.core.pod.api import PodError, pod_from_api
from pinfold.node.view import View
from pinfold.ports.errors import PortError
from pinfold.ports.figures import Figure
from pinfold.ports.nri import PodSandbox

LIMIT: Final = 0.6
"""Seconds that an API server has for one answer."""

PATIENCE: Final = 0.8
"""Seconds that a runtime waits for all answers: it drops a plugin that takes two (NRI)."""

AT_ONCE: Final = 64
"""Pods that are asked for at a time."""

_SOURCE: Final = "kubernetes.io/config.source"
"""From where a kubelet has a pod, in the annotations of its sandbox."""

_MIRROR: Final = "kubernetes.io/config.mirror"
"""The uid of a pod that a kubelet has from a file, in the annotations of the copy on its server.

A kubelet makes that copy before it has a runtime make the pod (upstream ``Kubelet.SyncPod``).
"""

NO_SERVER: Final = (
    "no API server says what pods ask for as a whole, and the gate PodLevelResourceManagers is on: "
    "give the agent access to one (kubeconfig), or switch the gate off"
)

_FIELDS: Final = ("name", "resources", "restartPolicy")


class PodSource(Protocol):
    """An API server."""

    async def get_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A pod, as the server has it; raises PortError."""


class PodSpec(Struct, frozen=True):
    """What is known of a pod's specification.

    ``whole`` are its resources and its containers', in the API's fields, where it has resources of
    its own; None: it has none.  ``problem`` says why nothing is known, "" where it is.
    """

    whole: Mapping[str, Any] | None = None
    problem: str = ""


ORDINARY: Final = PodSpec()
"""A pod without resources of its own."""


def spec_of(manifest: Mapping[str, Any]) -> PodSpec:
    """What a Pod object says.

    Raises:
        PodError: it is no pod.
    """
    if not pod_from_api(manifest).has_pod_level_resources:
        return ORDINARY
    spec = manifest["spec"]
    kept: dict[str, Any] = {"resources": spec["resources"]}
    for kind in ("initContainers", "containers"):
        kept[kind] = [
            {name: one[name] for name in _FIELDS if name in one} for one in spec.get(kind) or ()
        ]
    return PodSpec(kept)


def gives_whole(node: Node) -> bool:
    """Whether a node gives anything to pods by what they ask for as a whole."""
    return node.pod_level and (node.cpu_policy is not None or node.memory_policy is not None)


def recorded_spec(view: View, uid: str) -> PodSpec | None:
    """What of a pod's specification is in the books; None: nothing is known of it.

    Who owns something, and has nothing as a whole on record, asks for nothing so.
    """
    active = view.pods.active.get(uid)
    if active is None:
        return None
    if active.workload.pod.has_pod_level_resources:
        return spec_of(json.loads(active.record.manifest))
    return ORDINARY if active.record.assignments or active.record.memory else None


def without_server(node: Node) -> str:
    """Why pods share where no server is asked; "" where nobody has anything as a whole."""
    return NO_SERVER if gives_whole(node) else ""


class KubeletSpecs:
    """Asks an API server for pods.

    Args:
        source: the server; None: there is none, and no pod can be read.
        report: told why there is no answer (pod as ``namespace/name``).
        limit: seconds that an answer may take.
    """

    def __init__(
        self,
        source: PodSource | None,
        report: Callable[[str | None, str], None],
        *,
        limit: float = LIMIT,
    ) -> None:
        self._source = source
        self._report = report
        self._limit = limit
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.asked = 0
        self.unread = 0
        self.problem = ""
        """Why the last pod could not be read; "" when it could."""

    @property
    def has_server(self) -> bool:
        """Whether there is anybody to ask."""
        return self._source is not None

    async def of_pod(self, pod: PodSandbox) -> PodSpec:
        """What the server says of a pod; of its ``problem`` nobody was told so far."""
        try:
            spec = await self._ask(pod)
        except (PortError, PodError, TimeoutError) as error:
            no_answer = f"no answer within {self._limit:g} s"
            return PodSpec(problem=no_answer if isinstance(error, TimeoutError) else str(error))
        self.problem = ""
        return spec

    async def _ask(self, pod: PodSandbox) -> PodSpec:
        """Ask the server; raises PortError, PodError or TimeoutError."""
        if self._source is None:
            raise PortError(NO_SERVER)
        # What others take is not this answer's time.
        async with self._slots:
            self.asked += 1
            async with asyncio.timeout(self._limit):
                manifest = await self._source.get_pod(pod.namespace, pod.name)
        return _checked(pod, manifest)

    def tell_unread(self, pod: PodSandbox, problem: str) -> None:
        """Tell that a pod shares, and why it could not be read."""
        self.unread += 1
        self.problem = problem
        self._report(
            pod.full_name,
            "it shares its CPUs, as its specification could not be read, which says what it "
            f"asks for as a whole: {problem}",
        )

    def figures(self) -> Iterator[Figure]:
        """What the metrics tell of it."""
        yield Figure(
            "pinfold_pod_specifications_requests",
            "Questions to the API server for specifications of pods.",
            self.asked,
        )
        yield Figure(
            "pinfold_pod_specifications_unread",
            "Specifications of pods that could not be read, so that the pods share.",
            self.unread,
        )


def _checked(pod: PodSandbox, manifest: Mapping[str, Any]) -> PodSpec:
    """What an answer says; raises PodError where it is about another pod, or about none."""
    spec = spec_of(manifest)
    about = manifest["metadata"]
    uid = about.get("uid")
    known_by = uid
    if pod.annotations.get(_SOURCE, "api") != "api":
        known_by = (about.get("annotations") or {}).get(_MIRROR)
    if known_by != pod.uid:
        raise PodError("metadata.uid", f"{uid}: the API server has another pod of that name")
    return spec
