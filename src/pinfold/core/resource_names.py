"""What the name of a resource says about it, and what the API server refuses in one.

Source: upstream ``pkg/apis/core/helper`` and ``apimachinery/pkg/util/validation`` (1.34).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from pinfold.core.pod import CPU, MEMORY, is_hugepages

_NATIVE_DOMAIN: Final = "kubernetes.io/"
_QUOTA_PREFIX: Final = "requests."
_STANDARD: Final = frozenset({CPU, MEMORY, "ephemeral-storage"})
_NAME_PART: Final = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_LONGEST_NAME_PART: Final = 63
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_LONGEST_SUBDOMAIN: Final = 253

_NAME_RULE: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    r"for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


def is_native(name: str) -> bool:
    """Whether Kubernetes itself owns the name: it has no domain, or one of kubernetes.io."""
    return "/" not in name or is_prefixed_native(name)


def is_prefixed_native(name: str) -> bool:
    """Whether the name is in a domain of kubernetes.io."""
    return _NATIVE_DOMAIN in name


@lru_cache(maxsize=1024)
def is_extended(name: str) -> bool:
    """Whether it is an extended resource: one that a device plugin or an operator may announce.

    A name that would not be valid in a quota (with ``requests.`` before it) is none.
    """
    if is_native(name) or name.startswith(_QUOTA_PREFIX):
        return False
    return not any(qualified_name_problems(f"{_QUOTA_PREFIX}{name}"))


def may_be_overcommitted(name: str) -> bool:
    """Whether requests may be below limits: not of huge pages, nor of extended resources."""
    return is_native(name) and not is_hugepages(name)


def container_resource_problem(name: str) -> str:
    """Why no container can ask for a resource of this name; "" where one can."""
    for problem in qualified_name_problems(name):
        return problem
    if "/" not in name:
        known = name in _STANDARD or is_hugepages(name)
        return "" if known else "must be a standard resource for containers"
    if is_native(name) or is_extended(name):
        return ""
    return "doesn't follow extended resource name standard"


def qualified_name_problems(name: str) -> Iterator[str]:
    """Yield why a name is no *qualified name* (``gpu``, ``example.com/gpu``), in upstream's words.

    >>> list(qualified_name_problems("example.com/gpu"))
    []
    """
    domain, slash, part = name.partition("/")
    if not slash:
        domain, part = "", name
    elif "/" in part:
        yield (
            f"a qualified name {_NAME_RULE} with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')"
        )
        return
    elif not domain:
        yield "prefix part must be non-empty"
    else:
        if len(domain) > _LONGEST_SUBDOMAIN:
            yield f"prefix part must be no more than {_LONGEST_SUBDOMAIN} bytes"
        if not _SUBDOMAIN.fullmatch(domain):
            yield f"prefix part {_SUBDOMAIN_RULE}"
    if not part:
        yield "name part must be non-empty"
    elif len(part) > _LONGEST_NAME_PART:
        yield f"name part must be no more than {_LONGEST_NAME_PART} bytes"
    if not _NAME_PART.fullmatch(part):
        yield f"name part {_NAME_RULE}"
