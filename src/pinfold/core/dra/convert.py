"""Manifests of classes as manifests of DRA, and back: whole streams of objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from pinfold.core.classes.api import (
    COMPUTE_RESOURCE,
    RESOURCE_CLASS,
    class_from_api,
    compute_resource_from_api,
)
from pinfold.core.classes.api import GROUP as CLASSES_GROUP
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.resource_class import ResourceClass, classes_of
from pinfold.core.dra.claims import (
    CLAIM,
    TEMPLATE,
    Wanted,
    pod_with_claims,
    pod_with_class_resources,
    quota_of_claims,
    quota_of_classes,
    template_notes,
    template_requests,
    unknown_quota_classes,
)
from pinfold.core.dra.device_class import (
    DEVICE_CLASS,
    ReadClass,
    device_class,
    exclusion_problems,
    read_device_class,
    resource_names,
)
from pinfold.core.dra.names import DEFAULT_DRIVER, GROUP, VERSIONS, DRAError, check_driver
from pinfold.core.dra.objects import (
    ConvertError,
    InvalidError,
    Located,
    Manifest,
    at_path,
    replaced,
)
from pinfold.core.dra.selectors import DRIVER_PROPERTY
from pinfold.core.dra.slices import (
    RESOURCE_SLICE,
    Slice,
    compute_resources,
    is_native,
    read_slice,
    resource_slices,
)
from pinfold.core.pod.api import PodError, described
from pinfold.core.pod.manifest.fields import mapping, text_of
from pinfold.core.pod.manifest.pod_templates import template_path
from pinfold.core.values.notes import Note, said_once

_NOT_COUNTED: Final = (
    "left out: DRA lists each device, and neither spec.devices nor status.capacity says how many "
    "there are"
)
_QUOTA: Final = "ResourceQuota"

_T = TypeVar("_T")


class Converted(Struct, frozen=True):
    """The objects, in the order of what they were made of; ``lost`` says what is not in them."""

    objects: tuple[Manifest, ...]
    lost: tuple[str, ...]


def to_dra(objects: Sequence[Located], driver: str = DEFAULT_DRIVER) -> Converted:
    """The objects of DRA that stand for classes, compute resources, pods and quotas.

    Everything else stays as it is.

    Raises:
        ConvertError: an object that is wrong, or that DRA cannot hold.
    """
    try:
        check_driver(driver)
    except DRAError as error:
        raise InvalidError(str(error)) from None
    return _ToDRA(objects, driver).converted()


def to_classes(objects: Sequence[Located], driver: str | None = None) -> Converted:
    """The classes, compute resources, pods and quotas that stand for objects of DRA.

    Everything else stays as it is.

    Args:
        objects: the objects.
        driver: whose attributes are properties without a domain; without one, of what
            :func:`to_dra` has written the driver that it was written for, and of nothing else.

    Raises:
        ConvertError: an object that is wrong, or that no object of classes can stand for.
    """
    return _ToClasses(objects, driver).converted()


class _Conversion(ABC):
    """Goes through the objects, and says where something fails."""

    def __init__(self, objects: Sequence[Located]) -> None:
        self._objects = objects
        self._lost: list[Note] = []

    def converted(self) -> Converted:
        """All of them; raises ConvertError."""
        found = [one for each in self._objects for one in self._at(each, self._convert)]
        return Converted(tuple(found), tuple(said_once(self._lost)))

    @abstractmethod
    def _convert(self, one: Located) -> Iterable[Manifest]:
        """What stands for one object; raises PodError."""

    def _at(self, one: Located, does: Callable[[Located], _T]) -> _T:
        try:
            return does(one)
        except PodError as error:
            kind = ConvertError if isinstance(error, DRAError) else InvalidError
            raise kind(f"{one.where}: {described(one.manifest)}: {error}") from None

    def _loses(self, one: Located, notes: Iterable[str]) -> None:
        at = f"{one.where}: {described(one.manifest)}"
        self._lost += (Note(at, note) for note in notes)

    def _read(self, kind: str, read: Callable[[Located], _T]) -> dict[str, _T]:
        """The objects of a kind, by their names."""
        found: dict[str, _T] = {}
        for one in self._objects:
            if one.kind == kind:
                name = _full_name(one)
                if name in found:
                    raise InvalidError(f"{one.where}: {described(one.manifest)} is there already")
                found[name] = self._at(one, read)
        return found


class _ToDRA(_Conversion):
    def __init__(self, objects: Sequence[Located], driver: str) -> None:
        super().__init__(objects)
        self._driver = driver
        self._classes: dict[str, ResourceClass] = self._read(
            _RESOURCE_CLASS, lambda one: class_from_api(one.manifest)
        )
        self._resources: dict[str, ComputeResource] = self._read(
            _COMPUTE_RESOURCE, lambda one: compute_resource_from_api(one.manifest)
        )
        self._looked_at = {
            each.key
            for one in self._classes.values()
            for selector in one.selectors
            for each in selector
        }
        self._made: set[str] = {
            _full_name(one) for one in objects if one.kind == f"{GROUP}/{TEMPLATE}"
        }

    def _convert(self, one: Located) -> Iterable[Manifest]:
        if one.kind == _RESOURCE_CLASS:
            known = self._classes[_full_name(one)]
            return [device_class(one.manifest, known, self._classes.values(), self._driver)]
        if one.kind == _COMPUTE_RESOURCE:
            return self._slices(one)
        if one.kind == _QUOTA:
            made = quota_of_claims(one.manifest, self._classes)
            self._loses(one, unknown_quota_classes(made, self._classes))
            return [made]
        path = template_path(one.kind)
        return [one.manifest] if path is None else self._pods(one, path)

    def _slices(self, one: Located) -> Iterable[Manifest]:
        known = self._resources[_full_name(one)]
        if is_native(known.resource_name):
            self._loses(
                one, (f"left out: {known.resource_name} is counted by kubelets, and no device",)
            )
            return ()
        if not known.devices and known.capacity is None:
            self._loses(one, (_NOT_COUNTED,))
            return ()
        self._loses(one, self._level_notes(known))
        slices, notes = resource_slices(one.manifest, known, self._driver, self._looked_at)
        self._loses(one, notes)
        for each in slices:
            self._make(RESOURCE_SLICE, each["metadata"]["name"])
        return slices

    def _level_notes(self, one: ComputeResource) -> Iterable[str]:
        """The classes that would have it now, as DRA does not tell nodes from the cluster."""
        others = [
            each for each in self._classes.values() if each.is_cluster_level == bool(one.node_name)
        ]
        for each in classes_of(others, one.all_properties):
            yield (
                f"class {each.name} ({each.provision.resource_type}) had nothing of it, and will: "
                "a DeviceClass selects devices of nodes and of the cluster alike; select by a "
                "property that only one kind has"
            )

    def _pods(self, one: Located, path: tuple[str, ...]) -> Iterable[Manifest]:
        pod = at_path(one.manifest, path)
        if pod is None:
            return (one.manifest,)
        metadata = mapping(one.manifest.get("metadata"), "metadata")
        name = text_of(metadata.get("name") or metadata.get("generateName"), "metadata.name")
        namespace = text_of(metadata.get("namespace"), "metadata.namespace")
        where = "".join(f"{key}." for key in path)
        found = pod_with_claims(pod, name or "pod", namespace, self._classes, where)
        self._loses(one, found.notes)
        manifest = replaced(one.manifest, path, found.pod)
        if found.template is None:
            return (manifest,)
        name = found.template["metadata"]["name"]
        self._make(TEMPLATE, f"{namespace or 'default'}/{name}")
        return (found.template, manifest)

    def _make(self, kind: str, name: str) -> None:
        """Insist that the names of what is made are each there once; raises DRAError."""
        if name in self._made:
            raise DRAError("metadata.name", f"there would be two {kind}s {name}; rename one")
        self._made.add(name)


class _ToClasses(_Conversion):
    def __init__(self, objects: Sequence[Located], driver: str | None) -> None:
        super().__init__(objects)
        self._driver = driver
        self._classes: dict[str, ReadClass] = self._read(
            _DEVICE_CLASS, lambda one: read_device_class(one.manifest, driver)
        )
        self._names: dict[str, str] = {}
        for names in self._read(_DEVICE_CLASS, lambda one: resource_names(one.manifest)).values():
            self._names |= names
        self._templates: dict[str, dict[str, Mapping[str, Wanted]]] = {}
        self._unfit: dict[str, str] = {}
        self._used = {name for one in objects for name in _claimed_templates(one)}
        for one in self._objects:
            if one.kind == f"{GROUP}/{TEMPLATE}":
                self._read_template(one)
        self._pools = self._read_pools()

    def _read_template(self, one: Located) -> None:
        name = _full_name(one)
        namespace, _, short = name.partition("/")
        try:
            known = self._templates.setdefault(namespace, {})
            known[short] = template_requests(one.manifest)
        except PodError as error:
            # Only who uses it needs to know.
            self._unfit[name] = f"{one.where}: {described(one.manifest)}: {error}"

    def _read_pools(self) -> dict[str, list[Slice]]:
        """The slices of each pool's newest generation, by where its first one was read."""
        pools: dict[tuple[str, str], list[Slice]] = {}
        for one in self._objects:
            if one.kind == f"{GROUP}/{RESOURCE_SLICE}":
                part = self._at(one, lambda each: read_slice(each.where, each.manifest))
                pools.setdefault(part.key, []).append(part)
        newest = {}
        for parts in pools.values():
            last = max(part.generation for part in parts)
            kept = [part for part in parts if part.generation == last]
            if len(kept) != kept[0].of:
                raise ConvertError(
                    f"{kept[0].where}: {described(kept[0].manifest)}: "
                    f"spec.pool.resourceSliceCount: pool {kept[0].pool} has {kept[0].of} slices, "
                    f"and {len(kept)} are here"
                )
            newest[kept[0].where] = kept
        return newest

    def _convert(self, one: Located) -> Iterable[Manifest]:
        group, _, kind = one.kind.rpartition("/")
        if group == GROUP:
            self._check_version(one)
            return self._of_dra(one, kind)
        if one.kind == _QUOTA:
            return [quota_of_classes(one.manifest, self._names)]
        path = template_path(one.kind)
        return [one.manifest] if path is None else self._pods(one, path)

    def _of_dra(self, one: Located, kind: str) -> Iterable[Manifest]:
        if kind == DEVICE_CLASS:
            read = self._classes[_full_name(one)]
            self._loses(one, read.notes)
            self._loses(one, exclusion_problems(read, tuple(self._classes.values())))
            return [read.manifest]
        if kind == RESOURCE_SLICE:
            parts = self._pools.get(one.where)
            if parts is None:
                return ()
            found, notes = compute_resources(parts, self._driver)
            self._loses(one, notes)
            self._loses(one, self._driver_notes(parts[0].driver, found))
            return found
        if kind == TEMPLATE:
            is_used = _full_name(one) in self._used
            unused = ("left out: no pod here has a claim of it",)
            self._loses(one, template_notes(one.manifest) if is_used else unused)
            return ()
        self._loses(one, (f"left out: classes have nothing like it{_claim_words(kind)}",))
        return ()

    def _driver_notes(self, driver: str, found: Iterable[Manifest]) -> Iterable[str]:
        """Where a class does not tell a driver's devices from those of others as it did."""
        for manifest in found:
            properties = compute_resource_from_api(manifest).all_properties
            for read in self._classes.values():
                other = read.of_driver not in (None, driver) and read.of.matches(properties)
                if other:
                    yield (
                        f"class {read.of.name} had nothing of it, and may: it selected devices of "
                        f"driver {read.of_driver}, and does not say so any more"
                    )
                named = DRIVER_PROPERTY in properties and driver == read.naming.driver
                if named and _asks_for_driver(read.of):
                    yield (
                        f"class {read.of.name} will not take it for one of driver {driver}: it has "
                        f"a property {DRIVER_PROPERTY} of its own"
                    )

    def _check_version(self, one: Located) -> None:
        version = str(one.manifest.get("apiVersion")).removeprefix(f"{GROUP}/")
        if version not in VERSIONS:
            known = ", ".join(VERSIONS)
            raise DRAError("apiVersion", f"version {version[:40]} is not known; there are {known}")

    def _pods(self, one: Located, path: tuple[str, ...]) -> Iterable[Manifest]:
        pod = at_path(one.manifest, path)
        if pod is None:
            return (one.manifest,)
        for name in _claimed_templates(one):
            if (problem := self._unfit.get(name)) is not None:
                raise ConvertError(problem)
        templates = self._templates.get(_namespace(one), {})
        where = "".join(f"{key}." for key in path)
        found = pod_with_class_resources(pod, templates, self._names, where)
        return (replaced(one.manifest, path, found),)


_RESOURCE_CLASS: Final = f"{CLASSES_GROUP}/{RESOURCE_CLASS}"
_COMPUTE_RESOURCE: Final = f"{CLASSES_GROUP}/{COMPUTE_RESOURCE}"
_DEVICE_CLASS: Final = f"{GROUP}/{DEVICE_CLASS}"


def _asks_for_driver(one: ResourceClass) -> bool:
    return any(each.key == DRIVER_PROPERTY for selector in one.selectors for each in selector)


def _namespace(one: Located) -> str:
    metadata = one.manifest.get("metadata")
    found = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, str) and found else "default"


def _full_name(one: Located) -> str:
    metadata = one.manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{_namespace(one)}/{name}" if one.kind.endswith(TEMPLATE) else str(name)


def _claimed_templates(one: Located) -> Iterable[str]:
    """The templates of the claims of an object's pods, by their full names."""
    path = template_path(one.kind)
    pod = None if path is None else at_path(one.manifest, path)
    spec = None if pod is None else pod.get("spec")
    claims = spec.get("resourceClaims") if isinstance(spec, Mapping) else None
    for claim in claims if isinstance(claims, list) else ():
        name = claim.get("resourceClaimTemplateName") if isinstance(claim, Mapping) else None
        if isinstance(name, str):
            yield f"{_namespace(one)}/{name}"


def _claim_words(kind: str) -> str:
    return "; a pod's devices are its own" if kind == CLAIM else ""
