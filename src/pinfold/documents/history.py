"""What entries of the history say, beside decisions, whose explanation it is."""

from __future__ import annotations

from pinfold.documents.records import CPUs, Record


class Drifted(Record, frozen=True, kw_only=True):
    """``drifted``, ``repaired``: the kernel had something else than the record."""

    container: str | None
    """Null for the shared pool."""
    expected: str
    """In words."""
    found: str
    repaired: bool
    problem: str
    """Why it was not repaired."""


class Displaced(Record, frozen=True, kw_only=True):
    """``displaced``, ``returned``: where a container runs while CPUs are offline."""

    container: str
    cpus: CPUs
    """Its own; empty where it shares."""
    offline: CPUs
    """Those of them that are offline."""
    place: str
    """``shared``, ``frozen``, or ``own``."""
    problem: str
    """Why it is not there."""


class Resized(Record, frozen=True, kw_only=True):
    """``resized``, ``infeasible``: a running container was to have another number of CPUs."""

    container: str
    cpus: int | float
    """How many it asks for."""
    before: CPUs
    after: CPUs
    """What it is to have; as before where it is infeasible."""
    reason: str | None
    """Why it is infeasible, one word; null where it is feasible."""
    message: str | None


class Started(Record, frozen=True, kw_only=True):
    """``repaired`` at a start: what was changed of a record that did not fit."""

    start: str
    """In words."""
