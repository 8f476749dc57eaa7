"""Does a machine fit a profile?  What cannot be told never fits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from pinfold.core.machine.boot import cpu_list
from pinfold.core.profile.profile import EXCLUSIVE, Expect, Profile, Row
from pinfold.core.values.cpuset import CPUSet, CPUSetError

FITS, DIFFERS, UNKNOWN = "fits", "differs", "unknown"
WHICH_CPUS: Final = (
    "which CPUs are exclusive is not known; give --kubelet-config of a static policy, or "
    "--exclusive"
)
_CHOSEN: Final = re.compile(r"\[([^\[\]]*)\]")
_SHOWN: Final = 80


class Fact(Struct, frozen=True):
    """What was found at one place.

    Attributes:
        texts: what is there; where each CPU has one, by CPU, else that of -1.
        absent: there is no such thing on the machine, that is certain.
        unknown: why nothing is known; "" where something is.
    """

    texts: Mapping[int, str] = {}
    absent: bool = False
    unknown: str = ""


class NodeCPUs(Struct, frozen=True):
    """The CPUs of a node; None where it is not known which of them containers may own."""

    online: CPUSet
    exclusive: CPUSet | None = None

    @property
    def reserved(self) -> CPUSet:
        """Those that nobody owns."""
        return self.online - (self.exclusive or CPUSet())

    def named(self, group: str) -> CPUSet:
        """The CPUs of a group: ``exclusive``, ``reserved`` or ``online``."""
        if group == EXCLUSIVE:
            return self.exclusive or CPUSet()
        return self.reserved if group == "reserved" else self.online


class Finding(Struct, frozen=True):
    """A row, and how the machine compares: ``fits``, ``differs`` or ``unknown``.

    ``found`` is what is there, "" where nothing is; ``remark`` why it is not known; ``change`` is
    the line with the CPUs filled in.
    """

    row: Row
    state: str
    found: str = ""
    remark: str = ""
    change: str = ""

    def counts(self, *, strict: bool) -> bool:
        """Whether it keeps a machine from fitting; infos do not, unless it is ``strict``."""
        return self.state != FITS and (strict or self.row.severity != "info")


class _UntoldError(Exception):
    """A value that is not what it should be."""


def check(profile: Profile, facts: Mapping[str, Fact], cpus: NodeCPUs) -> tuple[Finding, ...]:
    """Compare what was found, by what the rows read, with what they expect."""
    return tuple(_check(row, facts.get(row.read), cpus) for row in profile.rows)


def _check(row: Row, fact: Fact | None, cpus: NodeCPUs) -> Finding:
    change = _filled(row.change, cpus)
    if fact is None or fact.unknown:
        remark = "it was not looked at" if fact is None else fact.unknown
        return Finding(row, UNKNOWN, remark=remark, change=change)
    if row.needs_exclusive and not cpus.exclusive:
        found = _told(fact.texts)
        return Finding(row, UNKNOWN, found, WHICH_CPUS, change)
    if fact.absent or not fact.texts:
        remark = "" if row.absent != UNKNOWN else "there is no such thing on this machine"
        return Finding(row, row.absent, "", remark, change)
    try:
        wrong = {at: text for at, text in fact.texts.items() if not _fits(row, text, cpus)}
    except _UntoldError as error:
        return Finding(row, UNKNOWN, _told(fact.texts), str(error), change)
    if wrong:
        return Finding(
            row, DIFFERS, _told({at: _value(row, text) for at, text in wrong.items()}), "", change
        )
    return Finding(
        row, FITS, _told({at: _value(row, text) for at, text in fact.texts.items()}), "", change
    )


def _value(row: Row, text: str) -> str:
    if row.form == "choice" and (chosen := _CHOSEN.search(text)) is not None:
        return chosen[1]
    return text.strip()


def _fits(row: Row, text: str, cpus: NodeCPUs) -> bool:
    value, expect = _value(row, text), row.expect
    if row.form == "choice" and _CHOSEN.search(text) is None:
        raise _UntoldError(f"nothing is chosen in {value[:_SHOWN]!r}")
    if expect.is_ is not None:
        return value in map(str, expect.is_)
    if expect.group:
        found = _cpus(row.form, value, cpus.online)
        named = cpus.named(expect.group)
        return named <= found if expect.has_cpus is not None else named.isdisjoint(found)
    return _within(expect, value)


def _within(expect: Expect, value: str) -> bool:
    try:
        number = float(value)
    except ValueError:
        raise _UntoldError(f"{value[:_SHOWN]!r} is no number") from None
    if expect.at_least is not None:
        return number >= expect.at_least
    return expect.at_most is not None and number <= expect.at_most


def _cpus(form: str, value: str, online: CPUSet) -> CPUSet:
    if form == "mask":
        try:
            return CPUSet.parse_hex(value)
        except CPUSetError:
            raise _UntoldError(f"{value[:_SHOWN]!r} is no mask of CPUs") from None
    found = cpu_list(value, online)
    if found is None:
        raise _UntoldError(f"{value[:_SHOWN]!r} is no list of CPUs")
    return found


def _told(texts: Mapping[int, str]) -> str:
    """``powersave on CPUs 2-5, performance on CPUs 6-7``, or the text that all have."""
    groups: dict[str, list[int]] = {}
    for at, text in texts.items():
        groups.setdefault(text.strip()[:_SHOWN], []).append(at)
    return ", ".join(_on(text, ats) for text, ats in groups.items())


def _on(text: str, ats: Iterable[int]) -> str:
    cpus = CPUSet(at for at in ats if at >= 0)
    return f"{text} on CPU{'s' * (len(cpus) > 1)} {cpus}" if cpus else text


def _filled(change: str, cpus: NodeCPUs) -> str:
    known = bool(cpus.exclusive)
    values = {
        "{exclusive}": str(cpus.exclusive) if known else "EXCLUSIVE-CPUS",
        "{reserved}": str(cpus.reserved) if known else "OTHER-CPUS",
        "{reserved-mask}": cpus.reserved.hex() if known else "MASK-OF-OTHER-CPUS",
    }
    for name, value in values.items():
        change = change.replace(name, value)
    return change


def counted(findings: Iterable[Finding]) -> Iterator[tuple[str, int]]:
    """How many rows fit, differ and are unknown."""
    states = [finding.state for finding in findings]
    for state in (FITS, DIFFERS, UNKNOWN):
        yield state, states.count(state)
