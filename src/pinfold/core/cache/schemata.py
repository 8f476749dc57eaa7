"""The texts of resctrl: schemata, as the kernel prints and takes them."""

from __future__ import annotations

import re
from typing import Final

from pinfold.core.cache.offers import Schemata

_VALUE: Final = re.compile(r"([0-9]{1,9})=[ ]*([0-9a-fA-F]{1,16})")
_UNINITIALIZED: Final = "uninitialized"
_LINE: Final = re.compile(r"[A-Z][A-Z0-9]{0,15}")


class SchemataError(ValueError):
    """A text that is no schemata; the message names the line."""


def is_mask(line: str) -> bool:
    """Whether a line has masks, in hexadecimal; the others have amounts."""
    return line.startswith("L")


def parse_schemata(text: str) -> dict[str, dict[int, int]]:
    """What a ``schemata`` file says; a line of a group that is being locked has no domains.

    Raises:
        SchemataError: a line that is none, or a domain twice.
    """
    found: dict[str, dict[int, int]] = {}
    for raw in text.splitlines():
        if not raw.strip():
            continue
        name, colon, values = raw.strip().partition(":")
        if not colon or _LINE.fullmatch(name) is None or name in found:
            raise SchemataError(f"{raw[:80]!r} is no line of a schemata")
        domains: dict[int, int] = {}
        for part in () if values == _UNINITIALIZED else values.split(";"):
            if not part.strip():
                continue
            match = _VALUE.fullmatch(part.strip())
            if match is None or int(match[1]) in domains:
                raise SchemataError(f"{raw[:80]!r}: {part[:40]!r} is no domain with its value")
            try:
                domains[int(match[1])] = int(match[2], 16 if is_mask(name) else 10)
            except ValueError:
                raise SchemataError(f"{raw[:80]!r}: {match[2]!r} is no number") from None
        found[name] = domains
    return found


def format_schemata(schemata: Schemata) -> str:
    """The text to write, with the newline without which the kernel refuses it."""
    lines = []
    for name, domains in schemata.items():
        form = "x" if is_mask(name) else "d"
        values = ";".join(f"{domain}={value:{form}}" for domain, value in sorted(domains.items()))
        if values:
            lines.append(f"{name}:{values}\n")
    return "".join(lines)


def merged(under: Schemata, over: Schemata) -> dict[str, dict[int, int]]:
    """One schemata with what another one says besides; what both say is the other's."""
    found = {line: dict(domains) for line, domains in under.items()}
    for line, domains in over.items():
        found.setdefault(line, {}).update(domains)
    return found
