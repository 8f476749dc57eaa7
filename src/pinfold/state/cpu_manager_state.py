"""``cpu_manager_state``: the CPU manager's checkpoint, in every layout that kubelets have written.

- v1 (before 1.18): container id -> CPU set.
- v2 (1.18 and later): pod uid -> container name -> CPU set.
- v3 (1.36 with the feature gate PodLevelResourceManagers): v2 and ``podEntries``, the pods' own
  sets.
- v4 (1.37): v2, for older kubelets, and the content of v3 as a text (``data``) with a checksum of
  its own, which is the one that counts.

A checkpoint here holds the texts of the file, not parsed sets, because the checksum is taken
over the texts.  :mod:`pinfold.state.restore` makes a ledger of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import MAX_CPU, CPUSet
from pinfold.state.checksum import checksum_of_dump
from pinfold.state.fields import FieldsOfFile
from pinfold.state.go_json import GoJSONError, Node, Object, parse, quote
from pinfold.state.go_value import (
    Decoding,
    GoField,
    GoInteger,
    GoMap,
    GoString,
    GoStruct,
    GoType,
    Value,
    unmarshal,
)
from pinfold.state.layouts import CPU_STATE, Layout, StateForm

_C = TypeVar("_C")

CPU_MANAGER_STATE: Final = "cpu_manager_state"
"""The file's name, in the kubelet's root directory."""

CORRUPT: Final = "checkpoint is corrupted"
"""The kubelet's words for a checksum that does not fit."""


class CheckpointError(ValueError):
    """A file that a kubelet would not restore; the message is the kubelet's, without its frame."""


class _PodEntry(GoType):
    """A pod's own set: a text in JSON, a set of numbers in the dump."""

    name = "state.PodEntry"
    _json = GoStruct(
        "state.podEntryJSON", [GoField("CPUSet", "cpuSet", GoString(), omitempty=True)]
    )

    def zero(self) -> str:
        return ""

    def decode(self, node: Node, current: Value, run: Decoding) -> Value:
        if node is None:
            return current
        try:
            text = unmarshal(self._json, node, self._json.zero())["CPUSet"]
            return str(parse_kubelet_cpuset(text))
        except (GoJSONError, CheckpointError) as error:
            run.stop(str(error))
            return current

    def encode(self, value: Value) -> str:
        return self._json.encode({"CPUSet": value})

    def dump(self, value: Value) -> str:
        elements = " ".join(f"{cpu}:{{}}" for cpu in CPUSet.parse(value))
        return f"{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{elements}]}}}}"


_STRING: Final = GoString()
_CONTAINERS: Final = GoMap(_STRING, _STRING)
_PODS: Final = GoMap(_STRING, _CONTAINERS)
_POD_ENTRIES: Final = GoMap(_STRING, _PodEntry(), "state.PodCPUAssignments")
_CHECKSUM: Final = GoInteger("checksum.Checksum", signed=False)
_HEAD: Final = (
    GoField("PolicyName", "policyName", _STRING),
    GoField("DefaultCPUSet", "defaultCpuSet", _STRING),
)
_V2_FIELDS: Final = (*_HEAD, GoField("Entries", "entries", _PODS, omitempty=True))
_V3_FIELDS: Final = (*_V2_FIELDS, GoField("PodEntries", "podEntries", _POD_ENTRIES, omitempty=True))
_END: Final = GoField("Checksum", "checksum", _CHECKSUM)
_DATA: Final = GoStruct("state.CPUManagerCheckpointData", _V3_FIELDS)
_BLANK: Final[dict[str, Value]] = _DATA.zero() | {"Entries": {}, "PodEntries": {}}
_TYPES: Final = {
    Layout.V1: GoStruct(
        "state.CPUManagerCheckpointV1",
        (*_HEAD, GoField("Entries", "entries", _CONTAINERS, omitempty=True), _END),
    ),
    Layout.V2: GoStruct("state.CPUManagerCheckpoint", (*_V2_FIELDS, _END)),
    Layout.V3: GoStruct("state.CPUManagerCheckpoint", (*_V3_FIELDS, _END)),
    Layout.V4: GoStruct(
        "state.CPUManagerCheckpoint",
        (
            *_V2_FIELDS,
            _END,
            GoField("Data", "data", _STRING),
            GoField("DataChecksum", "dataChecksum", _CHECKSUM),
        ),
    ),
}
_FILE: Final = FieldsOfFile("cpu", _TYPES, _DATA, _BLANK)


class Attempt(Struct, Generic[_C], frozen=True):
    """What an attempt to read a file in one layout gave: all that could be read, and the error."""

    checkpoint: _C
    error: str = ""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint with one checksum, over all of it."""

    checksum: int = 0

    def hash_input(self) -> str:
        """The text that the kubelet takes the checksum over."""
        raise NotImplementedError

    def computed_checksum(self) -> int:
        """The checksum that the content should have."""
        return checksum_of_dump(self.hash_input())

    def verify(self) -> None:
        """Check the checksum as the kubelet does: no value is let pass; raises CheckpointError."""
        if self.checksum != self.computed_checksum():
            raise CheckpointError(CORRUPT)

    def sealed(self) -> Self:
        """The same content with the checksum that belongs to it."""
        return replace(self, checksum=self.computed_checksum())


class CPUManagerCheckpoint(Struct, frozen=True):
    """The content of a ``cpu_manager_state`` file.

    ``entries`` is pod uid -> container name -> CPU list, in v1 container id -> CPU list (as
    ``container_ids``).  ``None`` stands for a JSON ``null``, which has another checksum than an
    empty map.  ``pod_entries`` exists in v3 and v4.
    """

    layout: Layout
    policy_name: str
    default_cpu_set: str
    entries: Mapping[str, Mapping[str, str] | None] | None = None
    container_ids: Mapping[str, str] | None = None
    pod_entries: Mapping[str, str] | None = None
    checksum: int = 0
    data: str = ""
    data_checksum: int = 0

    @classmethod
    def parse(cls, file: bytes, layout: Layout) -> CPUManagerCheckpoint:
        """Read ``file`` as one layout; the checksum is not looked at.

        Raises:
            CheckpointError: no JSON or values of other types, in the words of Go's decoder.
        """
        attempt = cls.attempt(file, layout)
        if attempt.error:
            raise CheckpointError(attempt.error)
        return attempt.checkpoint

    @classmethod
    def attempt(cls, file: bytes, layout: Layout) -> Attempt[CPUManagerCheckpoint]:
        """Read as much of ``file`` as can be read as one layout."""
        read = _FILE.read(file, layout)
        return Attempt(cls._of(layout, read.outer, read.content), read.error)

    @classmethod
    def _of(
        cls, layout: Layout, outer: dict[str, Value], content: dict[str, Value]
    ) -> CPUManagerCheckpoint:
        value = _BLANK | content
        return cls(
            layout=layout,
            policy_name=value["PolicyName"],
            default_cpu_set=value["DefaultCPUSet"],
            entries=value["Entries"] if layout is not Layout.V1 else None,
            container_ids=value["Entries"] if layout is Layout.V1 else None,
            pod_entries=value["PodEntries"] if layout in CPU_STATE.with_pods else None,
            checksum=outer["Checksum"],
            data=outer.get("Data", ""),
            data_checksum=outer.get("DataChecksum", 0),
        )

    def _value(self) -> dict[str, Value]:
        return {
            "PolicyName": self.policy_name,
            "DefaultCPUSet": self.default_cpu_set,
            "Entries": self.container_ids if self.layout is Layout.V1 else self.entries,
            "PodEntries": self.pod_entries,
            "Checksum": self.checksum,
            "Data": self.data,
            "DataChecksum": self.data_checksum,
        }

    def hash_input(self) -> str:
        """The text that the kubelet takes the checksum over."""
        if self.layout is Layout.V4:
            return f"(string){self.data}"
        # Every layout is hashed under the name that the newest type had when it was written.
        dump = _TYPES[self.layout].dump(self._value() | {"Checksum": 0})
        return f"(*state.CPUManagerCheckpoint){dump}"

    def computed_checksum(self) -> int:
        """The checksum that the content should have."""
        return checksum_of_dump(self.hash_input())

    @property
    def is_newest(self) -> bool:
        """Whether it was surely written in its layout, so that no older one is tried."""
        return bool(self.data) or self.data_checksum != 0

    def verify(self, form: StateForm = CPU_STATE.anything) -> None:
        """Check the checksum as a kubelet of ``form`` does, else as the most lenient one.

        Raises:
            CheckpointError: it does not fit.
        """
        is_v4 = self.layout is Layout.V4
        fitting = {self.computed_checksum()}
        if self.layout in form.zero_passes:
            fitting.add(0)
        if self.layout in form.own_name_passes:
            own = f"Checkpoint{self.layout.value.upper()}"
            fitting.add(checksum_of_dump(self.hash_input().replace("Checkpoint", own, 1)))
        if (self.data_checksum if is_v4 else self.checksum) not in fitting:
            raise CheckpointError(CORRUPT)

    def sealed(self) -> CPUManagerCheckpoint:
        """The same content with the checksum that belongs to it."""
        if self.layout is not Layout.V4:
            return replace(self, checksum=self.computed_checksum())
        older = replace(self, layout=Layout.V2).computed_checksum()
        written = replace(self, data=_DATA.encode(self._value()), checksum=older)
        return replace(written, data_checksum=written.computed_checksum())

    def encode(self) -> bytes:
        """The file's bytes, as a kubelet writes them: one line without an end of line."""
        text = _TYPES[self.layout].encode(self._value())
        return text.encode("utf-8", "surrogatepass")


def detect_layout(file: bytes) -> Layout:
    """The layout that a file's content has; v2 where nothing tells.

    Raises:
        CheckpointError: no JSON, in the words of Go's decoder.
    """
    try:
        node = parse(file)
    except GoJSONError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(node, Object):
        return Layout.V2
    members = {key.lower(): member for key, member in node.members}
    if "data" in members or "datachecksum" in members:
        return Layout.V4
    if "podentries" in members:
        return Layout.V3
    entries = members.get("entries")
    if isinstance(entries, Object) and any(isinstance(v, str) for _, v in entries.members):
        return Layout.V1
    # v3 leaves out empty podEntries: only the checksum tells it from v2, and v1 from both where
    # there are no entries.
    has_entries = isinstance(entries, Object) and bool(entries.members)
    for layout in (Layout.V2, Layout.V3) if has_entries else (Layout.V2, Layout.V3, Layout.V1):
        try:
            CPUManagerCheckpoint.parse(file, layout).verify()
        except CheckpointError:
            continue
        return layout
    return Layout.V2


def parse_kubelet_cpuset(text: str) -> CPUSet:
    """Read a CPU list as the kubelet does: no spaces, no strides, signs and zeros in front allowed.

    Raises:
        CheckpointError: the text of ``cpuset.Parse``; an id above ``MAX_CPU`` is refused too,
            where a kubelet would try to hold it.
    """
    mask = 0
    for part in text.split(",") if text else ():
        low_text, dash, high_text = part.partition("-")
        low = _atoi(low_text)
        high = _atoi(high_text) if dash else low
        if low > high:
            raise CheckpointError(f"invalid range {quote(part)} ({low} > {high})")
        if high > MAX_CPU:
            raise CheckpointError(f"{quote(part)}: CPU ids above {MAX_CPU} are not accepted")
        mask |= ((1 << (high - low + 1)) - 1) << low
    return CPUSet.from_mask(mask)


def _atoi(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        raise CheckpointError(f"strconv.Atoi: parsing {quote(text)}: invalid syntax")
    # Longer ones do not fit 64 bits, and Python refuses to convert the very long.
    significant = digits.lstrip("0") or "0"
    number = int(significant) if len(significant) < 20 else 1 << 64
    number = -number if text[0] == "-" else number
    if not -(1 << 63) <= number < 1 << 63:
        raise CheckpointError(f"strconv.Atoi: parsing {quote(text)}: value out of range")
    return number
