"""Reads hwloc XML (lstopo's export, versions 2.x and 3.0) into plain objects.

The file is streamed: objects are kept, but not the XML around them.  Source: hwloc's own
``hwloc2.dtd``; the differences of 3.0 (machine-wide ``info`` elements under ``topology``
instead of under the Machine object) are both read.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Final
from xml.etree.ElementTree import (
    Element,
    ParseError,
)

from msgspec import Struct, field

from pinfold.core.machine.machine import MachineError

MAX_DEPTH: Final = 128
"""Nested elements: hwloc nests a bridge in a bridge, but nothing deeper than a few dozen."""

_MAX_ELEMENTS: Final = 2_000_000
_VERSIONS: Final = ("2", "3")


class HwlocObject(Struct, eq=False):
    """One ``object`` element: ``kind`` is its type (``Package``, ``PU``, ...)."""

    kind: str
    attributes: dict[str, str]
    parent: HwlocObject | None
    infos: dict[str, str] = field(default_factory=dict)
    pages: list[tuple[str, str]] = field(default_factory=list)

    def ancestors(self) -> Iterator[HwlocObject]:
        """The object itself, then its parent, up to the machine."""
        here: HwlocObject | None = self
        while here is not None:
            yield here
            here = here.parent

    def __str__(self) -> str:
        index = self.attributes.get("os_index")
        return self.kind if index is None else f"{self.kind} {index[:20]}"


class HwlocDistances(Struct):
    """One ``distances2`` element; both lists in the file's order."""

    attributes: dict[str, str]
    indexes: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)


class HwlocCpuKind(Struct):
    """One ``cpukind`` element."""

    attributes: dict[str, str]
    infos: dict[str, str] = field(default_factory=dict)


class HwlocTopology(Struct):
    """A whole file; ``objects`` in document order, the Machine first."""

    version: str
    objects: list[HwlocObject] = field(default_factory=list)
    infos: dict[str, str] = field(default_factory=dict)
    distances: list[HwlocDistances] = field(default_factory=list)
    cpu_kinds: list[HwlocCpuKind] = field(default_factory=list)


_Holder = HwlocTopology | HwlocObject | HwlocDistances | HwlocCpuKind


def read_hwloc_xml(data: bytes, *, name: str) -> HwlocTopology:
    """Read the XML text, not compressed, of a file called ``name``.

    Raises:
        MachineError: no well-formed XML, entity declarations or references to other files,
            elements nested too deep, no hwloc file, or one of hwloc 1.x.
    """
    # Not always needed: most runs of the program read no XML.
    from defusedxml.common import DefusedXmlException  # noqa: PLC0415 - 0.6 ms
    from defusedxml.ElementTree import iterparse  # noqa: PLC0415 - 2.7 ms

    reader = _Reader(name)
    try:
        # hwloc files have a DOCTYPE line; what is dangerous in one is refused all the same.
        for event, element in iterparse(
            BytesIO(data),
            events=("start", "end"),
            forbid_dtd=False,
            forbid_entities=True,
            forbid_external=True,
        ):
            if event == "start":
                reader.start(element)
            else:
                reader.end(element)
    except DefusedXmlException as error:
        raise MachineError(
            f"{name}: the XML declares or refers to entities, which an hwloc file never does; "
            "export it again with: lstopo file.xml"
        ) from error
    except ParseError as error:
        raise MachineError(
            f"{name}: not well-formed XML ({error}); is the file complete? "
            "Export it again with: lstopo file.xml"
        ) from error
    except (ValueError, LookupError) as error:
        if isinstance(error, MachineError):
            raise
        raise MachineError(
            f"{name}: the XML's text encoding cannot be read ({error}); lstopo writes UTF-8"
        ) from error
    if reader.topology is None or not reader.topology.objects:
        raise MachineError(f"{name}: no object in the hwloc XML; export it again with lstopo")
    return reader.topology


class _Reader:
    """Builds the topology from start and end events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topology: HwlocTopology | None = None
        # What the children of each open element belong to.
        self._open: list[_Holder] = []
        self._elements = 0

    def start(self, element: Element) -> None:
        self._elements += 1
        if len(self._open) >= MAX_DEPTH or self._elements > _MAX_ELEMENTS:
            raise MachineError(
                f"{self.name}: more than {MAX_DEPTH} nested or {_MAX_ELEMENTS} elements; "
                "this is no hwloc export"
            )
        if self.topology is None:
            self._open.append(self._start_topology(element))
            return
        holder = self._open[-1]
        attributes = dict(element.attrib)
        if element.tag == "object":
            parent = holder if isinstance(holder, HwlocObject) else None
            new = HwlocObject(attributes.get("type", ""), attributes, parent)
            self.topology.objects.append(new)
            holder = new
        elif element.tag == "distances2":
            holder = HwlocDistances(attributes)
            self.topology.distances.append(holder)
        elif element.tag == "cpukind":
            holder = HwlocCpuKind(attributes)
            self.topology.cpu_kinds.append(holder)
        elif element.tag == "info":
            if not isinstance(holder, HwlocDistances):
                holder.infos.setdefault(attributes.get("name", ""), attributes.get("value", ""))
        elif element.tag == "page_type" and isinstance(holder, HwlocObject):
            holder.pages.append((attributes.get("size", ""), attributes.get("count", "0")))
        self._open.append(holder)

    def end(self, element: Element) -> None:
        holder = self._open.pop()
        if isinstance(holder, HwlocDistances):
            words = (element.text or "").split()
            if element.tag == "indexes":
                holder.indexes += words
            elif element.tag == "u64values":
                holder.values += words
        element.clear()

    def _start_topology(self, element: Element) -> HwlocTopology:
        if element.tag != "topology":
            raise MachineError(
                f"{self.name}: the XML's first element is {element.tag[:40]!r}, not 'topology'; "
                "only hwloc XML is read, export it with: lstopo file.xml"
            )
        version = element.get("version", "1")
        if version.partition(".")[0] not in _VERSIONS:
            raise MachineError(
                f"{self.name}: hwloc XML version {version[:20]} is not known (2.x and 3.0 are); "
                "export it again with a newer lstopo: lstopo file.xml"
            )
        self.topology = HwlocTopology(version)
        return self.topology
