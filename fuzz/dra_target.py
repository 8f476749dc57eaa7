"""Classes and objects of DRA, damaged: what is converted reads back, or an error in one line."""

from __future__ import annotations

from typing import Final

from fuzz import seeds
from fuzz.engine import Target
from pinfold.core.dra.cel import CELError, parse
from pinfold.core.dra.convert import to_classes, to_dra
from pinfold.core.dra.objects import ConvertError, Located, located
from pinfold.core.dra.selectors import Naming, selectors
from pinfold.formats.json_or_yaml import DocumentError, read_documents
from pinfold.formats.yaml_documents import yaml_documents
from pinfold.formats.yaml_writing import written_yaml

_WORDS: Final = (
    b'device.attributes["a.io"].x',
    b'device.capacity["a.io"]["x"].compareTo(quantity("1Gi")) >= 0',
    b'device.driver == "a.io"',
    b'"x" in device.attributes["a.io"]',
    b"has(device.attributes['a.io'].x)",
    b" && ",
    b" || ",
    b"!(",
    b")",
    b"[",
    b"]",
    b'\\"',
    b"\\u0041",
    b"apiVersion: resource.k8s.io/v1beta1",
    b"kind: DeviceClass",
    b"kind: ResourceSlice",
    b"kind: ResourceClaimTemplate",
    b"kind: List",
    b"convert.pinfold.dev/yields-to: a,b",
    b'convert.pinfold.dev/names: "{}"',
    b"convert.pinfold.dev/devices: '[]'",
    b"convert.pinfold.dev/priority: '-1'",
    b"resourceClaims: [{name: a, resourceClaimTemplateName: a}]",
    b"limits: {class.pinfold.dev/a: 1}",
    b"exactly: {deviceClassName: a, count: 1}",
    b"bool: true",
    b"int: 1",
    b"null",
    b"[]",
    b"{}",
)


def run_dra(data: bytes) -> None:
    """The bytes as an expression, and as manifests in both directions."""
    text = data.decode("utf-8", "replace")
    try:
        selectors(parse(text), Naming("a.io"))
    except CELError as error:
        _hold(str(error), "an error without a text")
    try:
        objects = [
            one
            for document in read_documents(text)
            for one in located(f"line {document.line}", document.content)
        ]
    except (DocumentError, ConvertError):
        return
    for convert in (to_dra, to_classes):
        try:
            converted = convert(objects)
        except ConvertError as error:
            _hold("line " in str(error) or "driver" in str(error), "an error without a place")
            continue
        written = written_yaml(converted.objects)
        again = [document.content for document in yaml_documents(written)]
        # A number beyond all floats is none of JSON's either: nobody could read it.
        is_json = "inf" not in repr(converted.objects)
        _hold(
            not is_json or again == list(converted.objects), "what is written reads back otherwise"
        )
        if convert is to_dra:
            _come_back(objects, [Located(f"line {at}", one) for at, one in enumerate(again)])


def _come_back(objects: list[Located], converted: list[Located]) -> None:
    """Insist that classes and compute resources come back; pods may claim what nobody has."""
    count = sum(one.kind == "pinfold.dev/ResourceClass" for one in objects)
    written = [one for one in converted if one.kind.startswith("resource.k8s.io/")]
    if any(one.kind.startswith("resource.k8s.io/") for one in objects):
        return
    kinds = [one["kind"] for one in to_classes(written).objects]
    _hold(kinds.count("ResourceClass") == count, "a class is lost on the way back")


def _hold(fact: object, text: str) -> None:
    if not fact:
        raise AssertionError(text)


def _files() -> list[bytes]:
    examples = seeds.files("examples/classes/*.yaml", "examples/readiness/*.yaml")
    documents = [document for text in examples for document in read_documents(text.decode())]
    objects = [
        one for at, document in enumerate(documents) for one in located(f"{at}", document.content)
    ]
    classes = [one for one in objects if one.kind != "Devices"]
    names = {one.manifest["metadata"]["name"]: one for one in classes}
    return [*examples, written_yaml(to_dra(list(names.values())).objects).encode()]


DRA_TARGET: Final = Target("dra", run_dra, _files, _WORDS)
