"""What the parts for a cluster need of its API server, and how it refuses.

The adapter fulfils it over HTTP; ``pinfold.planning.fake_kubernetes`` does so in memory.  Both pass
the same contract tests.  Source: the documented API concepts of Kubernetes (lists in chunks,
watches with bookmarks, ``resourceVersion``, 409 and 410).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar, overload

from msgspec import Struct

from pinfold.ports.errors import PortError

T = TypeVar("T")

Object = dict[str, Any]
"""An object of the API, as its JSON is."""

PROXY_WARNING: Final = (
    "nodes/proxy, a right that is as strong as exec in every container of the node: do not give it "
    "to anybody for this"
)
"""What is said wherever a kubelet may be asked through the API server."""

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class KubernetesError(PortError):
    """An API server cannot be reached, or refuses; the message names file and field, or request.

    ``status`` is the HTTP status where a server answered, else 0: then nobody knows whether what
    was asked for has been done.
    """

    def __init__(self, problem: str, remedy: str = "", *, status: int = 0) -> None:
        super().__init__(problem, remedy)
        self.status = status


class NotFoundError(KubernetesError):
    """There is no such object (404)."""


class ConflictError(KubernetesError):
    """The object has changed since it was read (409, reason ``Conflict``); read it again."""


class AlreadyExistsError(KubernetesError):
    """Somebody else has created it (409, reason ``AlreadyExists``)."""


class GoneError(KubernetesError):
    """The server has forgotten this version (410); list anew."""


class Resource(Struct, frozen=True):
    """A kind of objects, as a path names it.

    ``group`` is "" for the core group; ``is_namespaced``: each object is in a namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What an object of it has as ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version


PODS: Final = Resource("", "v1", "pods", "Pod")
NODES: Final = Resource("", "v1", "nodes", "Node", is_namespaced=False)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
NODE_RESOURCE_TOPOLOGIES: Final = Resource(
    "topology.node.k8s.io",
    "v1alpha2",
    "noderesourcetopologies",
    "NodeResourceTopology",
    is_namespaced=False,
)
RESOURCE_QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota")
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", is_namespaced=False)
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCE_CLAIM_TEMPLATES: Final = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"
)
RESOURCE_CLASSES: Final = Resource(
    "pinfold.dev", "v1alpha1", "resourceclasses", "ResourceClass", is_namespaced=False
)
COMPUTE_RESOURCES: Final = Resource(
    "pinfold.dev", "v1alpha1", "computeresources", "ComputeResource", is_namespaced=False
)
VALIDATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    is_namespaced=False,
)
MUTATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    is_namespaced=False,
)


class Metadata(Struct, frozen=True, kw_only=True):
    """What a typed object has as ``metadata``, at least; the names are the API's."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name


class Kind(Enum):
    """What has happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Listed(Struct, Generic[T], frozen=True):
    """Some of all objects there are at one moment.

    ``is_first``: a list begins; what was known before counts no more once the part has come that
    ``is_last``, unless it was listed again.
    """

    objects: Sequence[T]
    version: str
    is_first: bool
    is_last: bool


class Changed(Struct, Generic[T], frozen=True):
    """One object has changed; of one that was deleted, the last that it was."""

    kind: Kind
    object: T
    version: str


class Progress(Struct, frozen=True):
    """Nothing else has changed up to this version (a bookmark)."""

    version: str


Change = Listed[T] | Changed[T] | Progress


class Kubernetes(Protocol):
    """An API server.

    Each method raises KubernetesError (and its named kinds) where the server cannot be reached or
    refuses.
    """

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """An object as it is now; raises NotFoundError where there is none."""

    async def create(
        self,
        resource: Resource,
        created: Mapping[str, Any],
        subresource: str = "",
        *,
        within: float | None = None,
    ) -> Object:
        """Create an object; raises AlreadyExistsError.

        What takes longer than ``within`` seconds is given up, by the server, too.

        With a subresource it is created of the object of its name: ``binding`` of a pod assigns it
        to ``target.name``, with the annotations and, if it says one, only if it has the uid of
        ``metadata``; raises ConflictError where the pod is assigned already.
        """

    async def update(
        self, resource: Resource, changed: Mapping[str, Any], subresource: str = ""
    ) -> Object:
        """Replace an object, or a subresource of it (``status``), as the server has it then.

        With a ``metadata.resourceVersion`` it is a compare-and-swap.

        Raises:
            ConflictError: it has changed since.
            NotFoundError: it is there no more.
        """

    async def patch(
        self,
        resource: Resource,
        name: str,
        changes: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Change some fields (a JSON merge patch: None removes); raises as :meth:`update`."""

    async def delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Have an object deleted; raises NotFoundError."""

    async def list(self, resource: Resource, namespace: str = "") -> Sequence[Object]:
        """All objects, of one namespace or of all."""

    @overload
    def changes(
        self,
        resource: Resource,
        *,
        labels: Mapping[str, str] = ...,
        report: Callable[[str], None] = ...,
    ) -> AsyncIterator[Change[Object]]: ...
    @overload
    def changes(
        self,
        resource: Resource,
        of: type[T],
        *,
        labels: Mapping[str, str] = ...,
        report: Callable[[str], None] = ...,
    ) -> AsyncIterator[Change[T]]: ...
    def changes(
        self,
        resource: Resource,
        of: Any = ...,
        *,
        labels: Mapping[str, str] = ...,
        report: Callable[[str], None] = ...,
    ) -> AsyncIterator[Change[Any]]:
        """All objects of all namespaces, and then what changes, for ever.

        It watches on after disconnects, and lists anew where the server has forgotten what was
        watched last, or has gone back in its history (it was restored from a backup).  Nothing is
        missed; a disconnect repeats nothing.  What fails is told, and tried again; so is a server
        that says nothing for longer than it may, as each sends bookmarks.

        Args:
            resource: which.
            of: what an object is decoded to: a Struct with ``metadata``, which names the fields
                that matter; those that it does not name take no memory.
            labels: those objects only that have them; one that loses them counts as deleted.
            report: told each problem when it begins or becomes another one; "" when it is over,
                and the server watches again.
        """


def version_of(text: str) -> int:
    """A resourceVersion as a number: since Kubernetes 1.35 it is one by definition.

    0 where it is none, so that nothing is concluded from it.
    """
    return int(text) if text.isascii() and text.isdecimal() else 0


def object_version(found: Mapping[str, Any] | None) -> int:
    """The version of an object; 0 of one that is not there, or says none."""
    return 0 if found is None else version_of(found["metadata"].get("resourceVersion", ""))


def has_gone_back(now: str, before: str) -> str:
    """What to tell where a server's newest version is below one that it had; else ""."""
    if 0 < version_of(now) < version_of(before):
        return f"its history has gone back, from version {before} to {now}: all is listed anew"
    return ""


def refusal(status: int, reason: str, problem: str, remedy: str = "") -> KubernetesError:
    """The error that is an API server's answer: a status of 300 or more, and its reason."""
    if status == 409 and reason != "AlreadyExists":
        return ConflictError(problem, remedy, status=status)
    named = {404: NotFoundError, 409: AlreadyExistsError, 410: GoneError}
    return named.get(status, KubernetesError)(problem, remedy, status=status)
