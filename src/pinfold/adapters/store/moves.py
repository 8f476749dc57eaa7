"""The row of the plan of moves that is in flight: its document, and how far it has come."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from pinfold.adapters.store.schema import REMEDY
from pinfold.admission.moves import MoveDocumentError, move_plan_document, move_plan_of
from pinfold.core.moves.owners import Owner
from pinfold.core.values.cpuset import CPUSetError
from pinfold.documents.move_plan import MovePlan
from pinfold.ports.errors import StoreError
from pinfold.ports.records import PendingMove, PendingResize

_NO_PLAN: Final = "the row is none of this form"


class _Resize(Struct, frozen=True):
    uid: str
    container: str
    was: int
    now: int


class _Deadline(Struct, frozen=True):
    uid: str
    container: str
    at: float


class _Progress(Struct, frozen=True):
    """What is known of a plan beside its document."""

    why: str
    began_at: float
    boot: str
    deadlines: Sequence[_Deadline]
    resize: _Resize | None
    problem: str


def read_move(database: sqlite3.Connection, file: str) -> PendingMove | None:
    """The plan in flight.

    Raises:
        StoreError: it is none, or one with steps that this version cannot make.
        sqlite3.Error: the file cannot be read.
    """
    for plan, progress in database.execute("SELECT plan, progress FROM move"):
        try:
            document = msgspec.json.decode(plan, type=MovePlan)
            about = msgspec.json.decode(progress, type=_Progress)
            return _move(document, about)
        except MoveDocumentError as error:
            raise StoreError(f"{file}: table move: {error}") from None
        except (msgspec.MsgspecError, CPUSetError, ValueError) as error:
            raise StoreError(f"{file}: table move: {error}", REMEDY) from None
    return None


def _move(document: MovePlan, about: _Progress) -> PendingMove:
    plan = move_plan_of(document)
    if not 0 <= document.written <= len(plan.steps):
        raise ValueError(_NO_PLAN)
    resize = about.resize
    return PendingMove(
        plan,
        about.why,
        document.written,
        about.began_at,
        {Owner(one.uid, one.container): one.at for one in about.deadlines},
        about.boot,
        None
        if resize is None
        else PendingResize(Owner(resize.uid, resize.container), resize.was, resize.now),
        about.problem,
        made=document.written,
        memory={
            number: step.memory
            for number, step in enumerate(document.steps)
            if step.memory is not UNSET
        },
    )


def write_move(database: sqlite3.Connection, move: PendingMove | None) -> None:
    """Put a plan in the place of the one in flight; None: there is none any more.

    Raises:
        sqlite3.Error: it cannot be written.
    """
    if move is None:
        database.execute("DELETE FROM move")
        return
    document = move_plan_document(move.plan, move.why, written=move.written, memory=move.memory)
    resize = move.resize
    about = _Progress(
        move.why,
        move.began_at,
        move.boot,
        [_Deadline(*owner, at) for owner, at in move.deadlines.items()],
        None if resize is None else _Resize(*resize.owner, resize.was, resize.now),
        move.problem,
    )
    database.execute(
        "INSERT OR REPLACE INTO move VALUES (1, ?, ?)",
        (msgspec.json.encode(document).decode(), msgspec.json.encode(about).decode()),
    )
