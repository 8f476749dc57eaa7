"""What may be called how in ``resource.k8s.io``, and what our names become there.

Attributes, capacities and devices have narrower names than properties and device ids.  What fits
stays; anything else gets a name with a hash, always the same for the same, so that classes and
devices may be converted apart.  Whoever writes such a name also writes what it stands for.

Source: ``resource.k8s.io/v1`` (1.34), ``k8s.io/api/resource/v1/types.go``: ``QualifiedName``,
``DeviceMaxIDLength``, ``DeviceMaxDomainLength``, ``DriverNameMaxLength``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.fields import mapping
from pinfold.core.values.names import (
    LONGEST_LABEL,
    invalid,
    label_problems,
    subdomain_problems,
)

GROUP: Final = "resource.k8s.io"
API_VERSION: Final = f"{GROUP}/v1"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""The versions that are read; the first one is written."""

DEFAULT_DRIVER: Final = "pinfold.dev"
MOST_ATTRIBUTES: Final = 32
"""Attributes and capacities of a device together."""
MOST_SLICE_DEVICES: Final = 128
MOST_SELECTORS: Final = 32
MOST_REQUESTS: Final = 32
LONGEST_EXPRESSION: Final = 10 * 1024
LONGEST_VALUE: Final = 64
LONGEST_DOMAIN: Final = 63
LONGEST_IDENTIFIER: Final = 32

KEPT: Final = "convert.pinfold.dev/"
"""The prefix of the annotations that keep what DRA has no field for."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MADE: Final = "pf_"
_MADE_DEVICE: Final = "pf-"
_SHOWN: Final = 16
_HASH: Final = 12
_NO_IDENTIFIER: Final = re.compile(r"[^A-Za-z0-9]")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class DRAError(PodError):
    """What cannot be converted; ``path`` is the field at which that shows."""


def check_driver(name: str) -> str:
    """The name of a driver.

    Raises:
        DRAError: it is no DNS subdomain of at most 63 characters.
    """
    for problem in subdomain_problems(name):
        raise DRAError("driver", invalid(name, problem))
    if len(name) > LONGEST_DOMAIN:
        problem = f"must be no more than {LONGEST_DOMAIN} bytes"
        raise DRAError("driver", invalid(name, problem))
    return name


def attribute_name(key: str, driver: str) -> tuple[str, str]:
    """The domain and the identifier under which a property is an attribute or a capacity.

    >>> attribute_name("gpuType", "gpu.example.com")
    ('gpu.example.com', 'gpuType')
    >>> attribute_name("example.com/model", "gpu.example.com")
    ('example.com', 'model')
    >>> attribute_name("memory-size", "gpu.example.com")
    ('gpu.example.com', 'pf_memory_size_e772804f99fb')
    """
    domain, slash, identifier = key.rpartition("/")
    if _is_identifier(identifier) and not identifier.startswith(_MADE):
        if not slash:
            return driver, identifier
        if domain != driver and _is_domain(domain):
            return domain, identifier
    shown = _NO_IDENTIFIER.sub("_", key)[:_SHOWN]
    return driver, f"{_MADE}{shown}_{_hashed(key)}"


def qualified(name: tuple[str, str], driver: str) -> str:
    """The name of an attribute in a slice of the driver, whose own domain is left out."""
    domain, identifier = name
    return identifier if domain == driver else f"{domain}/{identifier}"


def property_key(domain: str, identifier: str, own: str | None, known: Mapping[str, str]) -> str:
    """The property of an attribute: the way back of :func:`attribute_name`.

    Args:
        domain: the attribute's domain.
        identifier: its identifier.
        own: the driver whose attributes are properties without a domain; None for no driver.
        known: identifier -> the property that it was made for.
    """
    if domain != own:
        return f"{domain}/{identifier}"
    return known.get(identifier, identifier)


def made_names(keys: Iterable[str], driver: str) -> dict[str, str]:
    """Identifier -> property, of those properties that cannot keep their names."""
    found = {attribute_name(key, driver)[1]: key for key in keys}
    return {made: key for made, key in sorted(found.items()) if made.startswith(_MADE)}


def device_name(id_: str) -> str:
    """The name of a device in a pool: its id where that is a DNS label.

    >>> device_name("gpu-0"), device_name("GPU-6f3c.1")
    ('gpu-0', 'pf-gpu-6f3c-1-69ec453831aa')
    """
    if not list(label_problems(id_)) and not id_.startswith(_MADE_DEVICE):
        return id_
    shown = _NO_IDENTIFIER.sub("-", id_.lower())[: LONGEST_LABEL - _HASH - len(_MADE_DEVICE) - 1]
    return f"{_MADE_DEVICE}{shown}-{_hashed(id_)}".replace("--", "-")


def carried_metadata(
    manifest: Mapping[str, Any], name: str, kept: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What an object becomes has of its metadata: labels and annotations; raises PodError.

    Args:
        manifest: the object.
        name: what its successor is called.
        kept: annotations that are added, without their prefix :data:`KEPT`.
    """
    before = mapping(manifest.get("metadata"), "metadata")
    metadata: dict[str, Any] = {"name": name}
    if before.get("namespace"):
        metadata["namespace"] = before["namespace"]
    if labels := mapping(before.get("labels"), "metadata.labels"):
        metadata["labels"] = dict(labels)
    annotations = {
        key: value
        for key, value in mapping(before.get("annotations"), "metadata.annotations").items()
        if key != _LAST_APPLIED and not str(key).startswith(KEPT)
    }
    annotations |= {f"{KEPT}{key}": value for key, value in (kept or {}).items()}
    if annotations:
        metadata["annotations"] = annotations
    return metadata


def kept_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The annotations that a conversion has left, without their prefix; raises PodError."""
    metadata = mapping(manifest.get("metadata"), "metadata")
    annotations = mapping(metadata.get("annotations"), "metadata.annotations")
    found = {}
    for key, value in annotations.items():
        if isinstance(key, str) and key.startswith(KEPT):
            if not isinstance(value, str):
                raise DRAError(f"metadata.annotations[{key}]", "must be a string (quote it)")
            found[key.removeprefix(KEPT)] = value
    return found


def _is_identifier(text: str) -> bool:
    return len(text) <= LONGEST_IDENTIFIER and _IDENTIFIER.fullmatch(text) is not None


def _is_domain(text: str) -> bool:
    return len(text) <= LONGEST_DOMAIN and not list(subdomain_problems(text))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH]
