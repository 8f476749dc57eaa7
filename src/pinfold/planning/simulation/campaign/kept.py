"""Runs that have ended, one file each in a folder, to be taken instead of running them again.

A file is named by what decides its run, so that nothing else is ever taken for it.  It is there
whole or not at all.  The folder is locked for as long as somebody uses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
from msgspec import Struct

from pinfold.linux.durable import replace
from pinfold.linux.locks import HeldError, Lock, folder_of, lock
from pinfold.planning.simulation.campaign.worker import read_run

_MAX_BYTES: Final = 2**28

Tell = Callable[[str], None]
"""Whom to tell what goes wrong and stops nothing."""


class KeptError(Exception):
    """A folder that cannot be used; the message names the remedy."""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """What is in a file; ``digest`` is of the bytes of ``run``."""

    kind: Literal["KeptRun"]
    identity: str
    digest: str
    run: msgspec.Raw


class KeptRuns:
    """A folder of runs, for as long as a ``with`` lasts.

    Args:
        folder: made where it is missing.
        tell: told of each file that cannot be taken or written.

    Raises:
        KeptError: it cannot be used, or somebody else uses it.
    """

    def __init__(self, folder: Path, tell: Tell) -> None:
        self.folder = folder
        self._tell = tell
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock: Lock = lock(folder, folder_of(folder))
        except HeldError as error:
            raise KeptError(
                f"{folder}: another simulation has it{error.who}; wait for its end, or name another"
            ) from None
        except OSError as error:
            raise KeptError(
                f"{folder}: cannot have the runs that end: {error.strerror or error}; name a "
                "folder that you may write to"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def load(self, identity: str) -> bytes | None:
        """The record of a run that has ended; None: it has to be run."""
        path = self._path(identity)
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES)
            read = msgspec.json.decode(data, type=_File)
            run = bytes(read.run)
            read_run(run)
        except FileNotFoundError:
            return None
        except OSError as error:
            why = f"cannot be read ({error.strerror or error})"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            why = "is damaged, or something else"
        else:
            if read.identity != identity:
                why = "is of another run"
            elif read.digest != _digest(run):
                why = "is damaged"
            else:
                return run
        self._tell(f"{path}: {why}; this run is made again")
        return None

    def save(self, identity: str, run: bytes) -> None:
        """Keep the record of a run; where that fails the simulation goes on without."""
        path = self._path(identity)
        content = _File("KeptRun", identity, _digest(run), msgspec.Raw(run))
        try:
            replace(path, msgspec.json.encode(content), mode=0o644)
        except OSError as error:
            self._tell(f"{path}: cannot be written ({error.strerror or error}); it is not kept")

    def _path(self, identity: str) -> Path:
        return self.folder / f"{identity}.run.json"


def _digest(run: bytes) -> str:
    return hashlib.sha256(run).hexdigest()
