"""Reading a state file as a kubelet does at its start: one layout after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from pinfold.state.cpu_manager_state import Attempt, CheckpointError
from pinfold.state.layouts import Layout, StateForm


class Readable(Protocol):
    """A document that a state file holds."""

    @property
    def layout(self) -> Layout:
        """The layout in which it was read."""

    @property
    def is_newest(self) -> bool:
        """Whether it was surely written in its layout, so that no older one is tried."""

    def verify(self, form: StateForm) -> None:
        """Check the checksum as a kubelet of ``form`` does; raises CheckpointError."""


C = TypeVar("C", bound=Readable)


class Accepted(Struct, Generic[C], frozen=True):
    """What a kubelet takes from a file, and what its first attempt could read of it."""

    checkpoint: C
    first: C


def read_in_turn(
    file: bytes, form: StateForm, attempt: Callable[[bytes, Layout], Attempt[C]]
) -> Accepted[C]:
    """The first layout of ``form`` that can be read and has a checksum that fits.

    Raises:
        CheckpointError: there is none; the error of the last that was tried.
    """
    first: C | None = None
    problem = ""
    for layout in form.layouts:
        tried = attempt(file, layout)
        first = tried.checkpoint if first is None else first
        problem = tried.error or _mismatch(tried.checkpoint, form)
        if not problem:
            return Accepted(tried.checkpoint, first)
        if tried.checkpoint.is_newest:
            raise CheckpointError(f"could not load {layout.value} checkpoint: {problem}")
    raise CheckpointError(problem)


def _mismatch(checkpoint: Readable, form: StateForm) -> str:
    try:
        checkpoint.verify(form)
    except CheckpointError as error:
        return str(error)
    return ""
