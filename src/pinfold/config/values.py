"""The values of a KubeletConfiguration's fields: how each kind is read, and what is refused.

Where a kubelet would not start, the text is the kubelet's (1.34); the API's types are strict, so a
number is no string and ``true`` is not ``"true"``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from pinfold.core.kubelet.eviction import EvictionError, parse_thresholds
from pinfold.core.kubelet.node_allocatable import (
    RESERVABLE,
    AllocatableError,
    NotReservableError,
    parse_reserved,
)
from pinfold.core.kubelet.policy_options import PolicyOptionError, parse_go_bool
from pinfold.core.pod.pod import MEMORY, is_hugepages
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.core.values.duration import DurationError, parse_duration
from pinfold.core.values.errors import PinfoldError
from pinfold.core.values.quantity import Quantity, QuantityError

AGENT_SECTION: Final = "pinfold"
"""The field of a KubeletConfiguration file that has the agent's own settings."""

_LARGEST_COUNT: Final = 2**31 - 1
_SHOWN: Final = 80
_JSON_KINDS: Final = {bool: "bool", int: "number", float: "number", list: "array"}


class ConfigError(PinfoldError, ValueError):
    """A configuration that cannot be used; the message names file or flag, field and remedy.

    ``where`` is the file, the flag, or the place in an experiment, and begins the message; "" where
    nobody knows yet.  ``problem`` is the rest of it.
    """

    def __init__(self, problem: str, where: str = "") -> None:
        # Names in it come from outside, and may hold what moves a cursor.
        message = f"{where}: {problem}" if where else problem
        super().__init__(
            message if message.isprintable() else message.encode("unicode_escape").decode()
        )
        self.problem = problem
        self.where = where


class SettingError(ConfigError):
    """A value that a setting cannot have; whoever knows the file or the flag adds it."""


def text(value: object) -> str:
    """Read a string.

    Raises:
        SettingError: anything else; YAML reads more as numbers and booleans than one expects.
    """
    if not isinstance(value, str):
        shown = show(value)
        quoted = f'; put it in quotes: "{shown}"' if isinstance(value, int | float) else ""
        raise SettingError(
            f"cannot unmarshal {_JSON_KINDS.get(type(value), 'object')} into a field of type string"
            f"{quoted}"
        )
    return value


def choice(field: str, flag: str, names: tuple[str, ...], end: str) -> Callable[[object], str]:
    """A reader for one of ``names``; ``end`` is how the kubelet's text lists them."""

    def read(value: object) -> str:
        name = text(value)
        if name not in names:
            raise SettingError(
                f'invalid configuration: {field} ({flag}) "{name}" must be one of: {end}'
            )
        return name

    return read


def policy(*names: str, own: tuple[str, ...] = ()) -> Callable[[object], str]:
    """A reader for the name of a manager's policy; ``own`` are names that need our section."""

    def read(value: object) -> str:
        name = text(value)
        if name not in names:
            hint = f"; {name} needs a section pinfold in the file (pinfold: {{}})"
            raise SettingError(
                f'unknown policy: "{name}"; it is {" or ".join(names)}{hint * (name in own)}'
            )
        return name

    return read


def boolean(value: object) -> bool:
    """Read true or false; raises SettingError."""
    if not isinstance(value, bool):
        raise SettingError(f"must be true or false, not {show(value)}")
    return value


def count(value: object) -> int:
    """Read a whole number that is not negative; raises SettingError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingError(f"must be a whole number, not {show(value)}")
    if value < 0:
        raise SettingError(f"invalid configuration: {show(value)} must not be a negative number")
    if value > _LARGEST_COUNT:
        raise SettingError(f"must be at most {_LARGEST_COUNT}")
    return value


def process_ids(value: object) -> int:
    """Read how many processes there may be, -1 for any number; raises SettingError."""
    return -1 if value == -1 and not isinstance(value, bool) else count(value)


def throttling_factor(value: object) -> float:
    """Read a part of a way, above 0 and at most 1; raises SettingError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingError(f"must be a number, not {show(value)}")
    if not 0 < value <= 1:
        raise SettingError(
            f"invalid configuration: memoryThrottlingFactor {show(value)} must be greater than 0 "
            "and less than or equal to 1.0"
        )
    return float(value)


def duration(value: object) -> float:
    """Read a Go duration such as ``10s`` or ``1m30s`` into seconds.

    Raises:
        SettingError: anything else, in the words of Go's ``time.ParseDuration``.
    """
    try:
        return parse_duration(text(value))
    except DurationError as error:
        raise SettingError(str(error)) from None


def cpus(value: object) -> CPUSet:
    """Read a CPU list such as ``0-1,8``; raises SettingError."""
    written = text(value)
    try:
        return CPUSet.parse(written)
    except CPUSetError as error:
        raise SettingError(
            "invalid configuration: unable to parse reservedSystemCPUs (--reserved-cpus) "
            f"{written[:_SHOWN]}, error: {error}"
        ) from None


def texts(value: object) -> Mapping[str, str]:
    """Read a mapping of strings; raises SettingError."""
    found: dict[str, str] = {}
    for name, item in _mapping(value).items():
        try:
            found[str(name)] = text(item)
        except SettingError as error:
            raise SettingError(f"{name}: {error}") from None
    return MappingProxyType(found)


def reserved(value: object) -> Mapping[str, Quantity]:
    """Read ``kubeReserved`` or ``systemReserved``; raises SettingError."""
    amounts = texts(value)
    try:
        return parse_reserved(amounts)
    except NotReservableError as error:
        raise SettingError(f"{error}; it holds {', '.join(RESERVABLE)}") from None
    except AllocatableError as error:
        raise SettingError(str(error)) from None


def eviction_hard(value: object) -> Mapping[str, str]:
    """Read ``evictionHard``: signal -> quantity or percentage; raises SettingError."""
    thresholds = texts(value)
    try:
        parse_thresholds(thresholds)
    except EvictionError as error:
        raise SettingError(
            f"{error}; a threshold is a signal such as memory.available with 100Mi or 5%"
        ) from None
    return thresholds


def feature_gates(value: object) -> Mapping[str, bool]:
    """Read ``featureGates``.

    Raises:
        SettingError: no boolean.
    """
    gates: dict[str, bool] = {}
    for name, on in _mapping(value).items():
        if not isinstance(on, bool):
            raise SettingError(f"{name}: must be true or false without quotes, not {show(on)}")
        gates[str(name)] = on
    return MappingProxyType(gates)


def flag_booleans(pairs: Mapping[str, str]) -> dict[str, bool]:
    """Read the values of feature gates from a command line, where they are texts.

    Raises:
        SettingError: neither true nor false, in one of Go's spellings.
    """
    gates: dict[str, bool] = {}
    for name, written in pairs.items():
        try:
            gates[name] = parse_go_bool(name, written)
        except PolicyOptionError:
            raise SettingError(
                f'invalid value of {name}={written}, err: strconv.ParseBool: parsing "{written}": '
                "invalid syntax; write true or false"
            ) from None
    return gates


def reserved_memory(value: object) -> tuple[Mapping[str, Any], ...]:
    """Read ``reservedMemory``: a list of ``{numaNode, limits}``; the limits become quantities.

    Raises:
        SettingError: what a kubelet would refuse.
    """
    if not isinstance(value, list):
        raise SettingError(f"must be a list of {{numaNode, limits}}, not {show(value)}")
    seen: set[tuple[int, str]] = set()
    return tuple(_numa_node(_mapping(item), seen) for item in value)


def _numa_node(item: Mapping[Any, Any], seen: set[tuple[int, str]]) -> Mapping[str, Any]:
    try:
        node = count(item.get("numaNode", 0))
    except SettingError as error:
        raise SettingError(f"numaNode: {error}") from None
    limits: dict[str, Quantity] = {}
    for key, amount in _mapping(item.get("limits") or {}).items():
        name = str(key)
        if name != MEMORY and not is_hugepages(name):
            raise SettingError(
                f'invalid configuration: the limit type "{name}" for NUMA node {node} is not '
                "supported, only [memory hugepages-<HugePageSize>] is accepted"
            )
        try:
            # Quantities, unlike strings, may be numbers.
            limits[name] = Quantity.parse(str(amount).strip())
        except QuantityError as error:
            raise SettingError(f"NUMA node {node}: {name}: {error}") from None
        if limits[name].is_zero:
            raise SettingError(
                f"invalid configuration: reserved memory may not be zero for NUMA node {node} "
                f'and resource "{name}"'
            )
        if (node, name) in seen:
            raise SettingError(
                "invalid configuration: the reserved memory has a duplicate value for NUMA node "
                f'{node} and resource "{name}"'
            )
        seen.add((node, name))
    return MappingProxyType({"numaNode": node, "limits": MappingProxyType(limits)})


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise SettingError(f"must be a mapping, not {show(value)}")
    return value


def nearest(name: object, known: Collection[str]) -> str:
    """The name that is most like an unknown one; "" where none is."""
    import difflib  # noqa: PLC0415 - 1.7 ms: for unknown names only

    return "".join(difflib.get_close_matches(str(name)[:_SHOWN], known, n=1))


def show(value: object) -> str:
    """A value for a text: short, whatever it is."""
    if isinstance(value, int) and abs(value) > 10**_SHOWN:
        return "a huge number"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return repr(value)[:_SHOWN]
    return "nothing" if value is None else "a list" if isinstance(value, list) else "a mapping"
