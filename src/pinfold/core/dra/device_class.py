"""ResourceClasses as DeviceClasses, and back.

DRA knows no priority: so what classes of a higher one select is excluded in ``selectors``.  The
priority and the rest that a DeviceClass has no field for are in annotations.

Source: ``resource.k8s.io/v1`` (1.34), ``DeviceClassSpec``; ``extendedResourceName`` is beta and on
from 1.36 (KEP-5004).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from pinfold.core.classes.api import (
    ClassError,
    class_from_api,
    class_to_api,
)
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.names import class_resource
from pinfold.core.classes.resource_class import Requirement, ResourceClass
from pinfold.core.dra.cel import DEVICE, DRIVER, CELError, Every, Node, Not, parse, quoted
from pinfold.core.dra.names import (
    API_VERSION,
    LONGEST_EXPRESSION,
    MOST_SELECTORS,
    DRAError,
    carried_metadata,
    kept_of,
    made_names,
)
from pinfold.core.dra.selectors import Naming, expression, selectors
from pinfold.core.pod.manifest.fields import mapping, mappings, text_of

DEVICE_CLASS: Final = "DeviceClass"
IMPLICIT_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: an extended resource that needs no ``extendedResourceName``."""

_OF_DRIVER: Final = "driver"
_PRIORITY: Final = "priority"
_YIELDS_TO: Final = "yields-to"
_PROVISION: Final = "provision-config"
_NAMES: Final = "names"

_NATIVE: Final = ComputeResource("", "node", "cpu", {})
_KNOWN_SPEC: Final = frozenset({"selectors", "config", "extendedResourceName"})


class ReadClass(Struct, frozen=True):
    """A ResourceClass that was made of a DeviceClass.

    Attributes:
        manifest: the ResourceClass.
        of: the class in it.
        naming: which attributes are properties without a domain.
        yields_to: class -> what is excluded for it.
        of_driver: the driver whose devices it selected, where the class does not say so any more.
        notes: what was left out.
    """

    manifest: Mapping[str, Any]
    of: ResourceClass
    naming: Naming
    yields_to: Mapping[str, Node]
    of_driver: str | None
    notes: tuple[str, ...]


def device_class(
    manifest: Mapping[str, Any], one: ResourceClass, classes: Iterable[ResourceClass], driver: str
) -> dict[str, Any]:
    """A DeviceClass that selects what a class has.

    Args:
        manifest: the class as it was written, for its labels and annotations.
        one: the class.
        classes: all that there are; those of higher priority come first.
        driver: the driver of the devices.

    Raises:
        DRAError: what it selects is too long for a DeviceClass.
    """
    higher = [each for each in classes if _comes_before(each, one)]
    higher.sort(key=lambda each: (-each.priority, each.name))
    expressions = [
        _of_driver(driver),
        expression(one, driver),
        *_packed([f"!({expression(each, driver)})" for each in higher], MOST_SELECTORS - 2),
    ]
    for at, text in enumerate(expressions):
        if len(text.encode()) > LONGEST_EXPRESSION:
            whose = one.name if at == 1 else "classes of a higher priority"
            raise DRAError(
                "spec.labelSelector",
                f"what {whose} selects is {len(text.encode())} bytes as an expression, and an "
                f"expression may have {LONGEST_EXPRESSION}; select by a property made for it",
            )
    if len(expressions) > MOST_SELECTORS:
        raise DRAError(
            "spec.priority",
            f"{len(higher)} classes have a higher priority: to exclude them takes "
            f"{len(expressions)} selectors, and a DeviceClass may have {MOST_SELECTORS}",
        )
    kept = {_OF_DRIVER: driver}
    if one.priority:
        kept[_PRIORITY] = str(one.priority)
    if higher:
        kept[_YIELDS_TO] = ",".join(each.name for each in higher)
    provision = class_to_api(one)["spec"].get("provisionConfig")
    if provision is not None:
        kept[_PROVISION] = json.dumps(provision)
    if made := made_names((each.key for each in _requirements((one,))), driver):
        kept[_NAMES] = json.dumps(made)
    return {
        "apiVersion": API_VERSION,
        "kind": DEVICE_CLASS,
        "metadata": carried_metadata(manifest, one.name, kept),
        "spec": {
            "selectors": [{"cel": {"expression": text}} for text in expressions],
            "extendedResourceName": class_resource(one.name),
        },
    }


def read_device_class(manifest: Mapping[str, Any], driver: str | None) -> ReadClass:
    """A ResourceClass of what a DeviceClass selects.

    Args:
        manifest: the DeviceClass.
        driver: whose attributes are properties without a domain; without one, of the classes that
            were converted before the driver that they were converted for.

    Raises:
        PodError: a field that is wrong, or a selector of which no class can be made.
    """
    kept = kept_of(manifest)
    spec = mapping(manifest.get("spec"), "spec")
    naming = Naming(driver or kept.get(_OF_DRIVER), _kept_names(kept))
    nodes = []
    for item, path in mappings(spec.get("selectors"), "spec.selectors"):
        where = f"{path}.cel.expression"
        text = text_of(mapping(item.get("cel"), f"{path}.cel").get("expression"), where)
        nodes.append((_parsed(text or "", where), where, text))
    names = [name for name in kept.get(_YIELDS_TO, "").split(",") if name]
    own, excluded = _parted(nodes, names)
    is_ours = kept.get(_OF_DRIVER) is not None and kept[_OF_DRIVER] == naming.driver
    of_driver = naming.driver if is_ours and _drop_driver(own, naming.driver or "") else None
    try:
        found = selectors(Every(tuple(node for node, *_ in own)), naming)
    except CELError as error:
        raise _refused(error, own) from None
    name = text_of(mapping(manifest.get("metadata"), "metadata").get("name"), "metadata.name")
    one = ResourceClass(name or "", found, _kept_number(kept))
    written = class_to_api(one)
    written["metadata"] = carried_metadata(manifest, one.name)
    if _PROVISION in kept:
        written["spec"]["provisionConfig"] = kept_json(kept, _PROVISION)
    try:
        one = class_from_api(written)
    except ClassError as error:
        raise DRAError(error.path, f"{error.problem} (as a ResourceClass)") from None
    notes = list(_left_out(spec, one.name))
    if not is_ours and one.matches(_NATIVE.all_properties):
        notes.append(
            "it selects CPUs and memory, too, where nodes tell of them; select by a property that "
            "only devices have, such as resourceName"
        )
    return ReadClass(written, one, naming, excluded, of_driver, tuple(notes))


def exclusion_problems(one: ReadClass, classes: Sequence[ReadClass]) -> Iterable[str]:
    """Yield where the priorities of classes mean something else than their DeviceClasses did.

    Raises:
        DRAError: what a class excludes is not what a class of a higher priority selects.
    """
    known = {each.of.name: each for each in classes}
    for name, node in one.yields_to.items():
        other = known.get(name)
        if other is None:
            yield f"it left devices to class {name}, which is not among these"
        elif node != parse(expression(other.of, _driver(one))):
            raise DRAError(
                "spec.selectors",
                f"what it excludes is not what class {name} selects; mend it, or drop the "
                f"annotations that a conversion has left",
            )
    for each in classes:
        if _comes_before(each.of, one.of) and each.of.name not in one.yields_to:
            yield (
                f"class {each.of.name} has a higher priority ({each.of.priority}), and will "
                "take devices from it that both select; it did not before"
            )


def resource_names(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The extended resources by which pods ask for a DeviceClass -> its class; raises PodError."""
    spec = mapping(manifest.get("spec"), "spec")
    name = text_of(mapping(manifest.get("metadata"), "metadata").get("name"), "metadata.name") or ""
    explicit = text_of(spec.get("extendedResourceName"), "spec.extendedResourceName")
    return {IMPLICIT_RESOURCE + name: name} | ({explicit: name} if explicit else {})


def kept_json(kept: Mapping[str, str], name: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What an annotation keeps as JSON; raises DRAError."""
    try:
        return json.loads(kept[name])
    except (ValueError, RecursionError):
        raise DRAError(
            f"metadata.annotations[convert.pinfold.dev/{name}]", "must be JSON; drop it"
        ) from None


def kept_texts(kept: Mapping[str, str], name: str) -> dict[str, str]:
    """A mapping of texts that an annotation keeps as JSON; raises DRAError."""
    found = kept_json(kept, name) if name in kept else {}
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        path = f"metadata.annotations[convert.pinfold.dev/{name}]"
        raise DRAError(path, "must be a mapping of texts; drop it")
    return found


def _kept_names(kept: Mapping[str, str]) -> dict[str, str]:
    return kept_texts(kept, _NAMES)


def _kept_number(kept: Mapping[str, str]) -> int:
    text = kept.get(_PRIORITY, "0")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= len("1000000000")):
        path = f"metadata.annotations[convert.pinfold.dev/{_PRIORITY}]"
        raise DRAError(path, "must be an integer; drop it")
    return int(text)


def _comes_before(one: ResourceClass, other: ResourceClass) -> bool:
    """Whether a class has what both select; those of the cluster take nothing of nodes."""
    is_alike = one.is_cluster_level == other.is_cluster_level
    return is_alike and one.priority > other.priority and bool(one.selectors)


def _of_driver(driver: str) -> str:
    return f"{DEVICE}.{DRIVER} == {quoted(driver)}"


def _drop_driver(own: list[_Parsed], driver: str) -> bool:
    """Take the selector away that a conversion has added; whether it was there."""
    added = parse(_of_driver(driver))
    at = next((at for at, (node, *_) in enumerate(own) if node == added), None)
    if at is not None:
        del own[at]
    return at is not None


def _driver(one: ReadClass) -> str:
    return one.naming.driver or ""


def _requirements(classes: Iterable[ResourceClass]) -> Iterable[Requirement]:
    return (each for one in classes for selector in one.selectors for each in selector)


def _packed(expressions: Sequence[str], most: int) -> list[str]:
    """The expressions, several in one where there are more than may be."""
    if len(expressions) <= most:
        return list(expressions)
    packed: list[str] = []
    for text in expressions:
        joined = f"{packed[-1]} && {text}" if packed else text
        if packed and len(joined.encode()) <= LONGEST_EXPRESSION:
            packed[-1] = joined
        else:
            packed.append(text)
    return packed


def _parsed(text: str, path: str) -> Node:
    if len(text.encode(errors="surrogatepass")) > LONGEST_EXPRESSION:
        raise DRAError(path, f"Too long: must have at most {LONGEST_EXPRESSION} bytes")
    try:
        return parse(text)
    except CELError as error:
        raise DRAError(path, f"{_shown(text)}: {error}") from None


_Parsed = tuple[Node, str, str | None]


def _parted(
    nodes: Sequence[_Parsed], names: Sequence[str]
) -> tuple[list[_Parsed], dict[str, Node]]:
    """What a class selects itself, and what it excludes for others, from the last selector up."""
    own, excluded = list(nodes), list[Node]()
    while own and len(excluded) < len(names):
        node, path, text = own.pop()
        items = node.items if isinstance(node, Every) else (node,)
        if not all(isinstance(item, Not) for item in items):
            raise DRAError(
                path,
                f"{_shown(text or '')}: is to exclude what other classes select, as the annotation "
                f"convert.pinfold.dev/{_YIELDS_TO} says, and does not; mend it, or drop the "
                "annotation",
            )
        excluded = [*(item.of for item in items if isinstance(item, Not)), *excluded]
    if len(excluded) != len(names):
        path = f"metadata.annotations[convert.pinfold.dev/{_YIELDS_TO}]"
        raise DRAError(path, "names more or fewer classes than selectors exclude; drop it")
    return own, dict(zip(names, excluded, strict=True))


def _refused(error: CELError, own: Sequence[_Parsed]) -> DRAError:
    """The first selector of which no class can be made, or all of them."""
    shown = "; ".join(_shown(text or "") for _, _, text in own)
    path = own[0][1] if len(own) == 1 else "spec.selectors"
    return DRAError(path, f"{shown}: no class can be made of it: {error}")


def _left_out(spec: Mapping[str, Any], name: str) -> Iterable[str]:
    if spec.get("config"):
        yield "spec.config is left out: a class has nothing for drivers"
    for field in sorted(str(name) for name in spec.keys() - _KNOWN_SPEC):
        yield f"spec.{field[:80]} is left out: a class has nothing like it"
    resource = spec.get("extendedResourceName")
    if isinstance(resource, str) and resource != class_resource(name):
        yield (
            f"pods ask for it by {resource[:320]} (spec.extendedResourceName), "
            f"for the class by {class_resource(name)}"
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 120 else f"{text[:120]}...")
