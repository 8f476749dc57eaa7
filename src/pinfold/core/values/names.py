"""What Kubernetes takes for the name of something, and what it says where it does not.

Source: upstream ``apimachinery/pkg/util/validation`` and ``apimachinery/pkg/api/validation``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

LONGEST_SUBDOMAIN: Final = 253
LONGEST_LABEL: Final = 63

_LABEL_FORMAT: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_FORMAT: Final = rf"{_LABEL_FORMAT}(\.{_LABEL_FORMAT})*"
_NAME_FORMAT: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL: Final = re.compile(_LABEL_FORMAT, re.ASCII)
_SUBDOMAIN: Final = re.compile(_SUBDOMAIN_FORMAT, re.ASCII)
_NAME_PART: Final = re.compile(_NAME_FORMAT, re.ASCII)
_VARIABLE: Final = re.compile("[ -<>-~]+", re.ASCII)
_MOST_SHOWN: Final = 2 * LONGEST_SUBDOMAIN


def _rule(text: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{text} (e.g. {shown}regex used for validation is '{pattern}')"


_LABEL_RULE: Final = _rule(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character",
    _LABEL_FORMAT,
    *("my-name", "123-abc"),
)
_SUBDOMAIN_RULE: Final = _rule(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character",
    _SUBDOMAIN_FORMAT,
    "example.com",
)
_NAME_RULE: Final = _rule(
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character",
    _NAME_FORMAT,
    *("MyName", "my.name", "123-abc"),
)
_VALUE_RULE: Final = _rule(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character",
    f"({_NAME_FORMAT})?",
    *("MyValue", "my_value", "12345"),
)


def subdomain_problems(name: str) -> Iterator[str]:
    """Yield why a text is no DNS subdomain (RFC 1123), as names of pods have to be.

    >>> list(subdomain_problems("web.example-1"))
    []
    """
    yield from _too_long(name, LONGEST_SUBDOMAIN)
    if not _SUBDOMAIN.fullmatch(name):
        yield _SUBDOMAIN_RULE


def prefix_problems(prefix: str) -> Iterator[str]:
    """Yield why no subdomain can begin so; it may end in a dash (``generateName``)."""
    begun = len(prefix) > 1 and prefix.endswith("-")
    return subdomain_problems(f"{prefix[:-2]}a" if begun else prefix)


def label_problems(name: str) -> Iterator[str]:
    """Yield why a text is no DNS label (RFC 1123), as names of containers have to be.

    >>> list(label_problems("a.b"))
    ['must not contain dots']
    """
    yield from _too_long(name, LONGEST_LABEL)
    if not _LABEL.fullmatch(name):
        yield "must not contain dots" if _SUBDOMAIN.fullmatch(name) else _LABEL_RULE


def label_value_problems(value: str) -> Iterator[str]:
    """Yield why a text is no value of a label."""
    yield from _too_long(value, LONGEST_LABEL)
    if value and not _NAME_PART.fullmatch(value):
        yield _VALUE_RULE


def variable_problems(name: str) -> Iterator[str]:
    """Yield why a text cannot name a variable of the environment."""
    if not name:
        yield "environment variable name must be non-empty"
    elif not _VARIABLE.fullmatch(name):
        yield (
            "a valid environment variable name must consist only of printable ASCII characters "
            "other than '='"
        )


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
        for problem in subdomain_problems(domain):
            yield f"prefix part {problem}"
    if not part:
        yield "name part must be non-empty"
    elif len(part) > LONGEST_LABEL:
        yield f"name part must be no more than {LONGEST_LABEL} bytes"
    if not _NAME_PART.fullmatch(part):
        yield f"name part {_NAME_RULE}"


def invalid(value: str, problem: str) -> str:
    """What is said of a value that is refused; a text of another length than a name's is cut.

    >>> invalid("a/b", "must not contain slashes")
    'Invalid value: "a/b": must not contain slashes'
    """
    shown = value if len(value) <= _MOST_SHOWN else f"{value[:LONGEST_LABEL]}..."
    if not shown.isprintable():
        shown = shown.encode("unicode_escape").decode()
    return f'Invalid value: "{shown}": {problem}'


def _too_long(text: str, most: int) -> Iterator[str]:
    if len(text.encode(errors="surrogatepass")) > most:
        yield f"must be no more than {most} bytes"
