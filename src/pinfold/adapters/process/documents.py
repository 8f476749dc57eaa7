"""What the files of a container say, as values and in the forms in which they are written."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Final

import msgspec
from msgspec import Struct

from pinfold.adapters.process.processes import ProcessId
from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerSpec

_VERSION: Final = 2
"""Of ``spec.json``; since 2 it has a checksum."""

_EXIT_CODES: Final = range(256)


class NonsenseError(ValueError):
    """A document that says what cannot be; the message tells what, "" where that is no help."""


class Identity(Struct, frozen=True):
    """Whose container it is, and which attempt."""

    key: ContainerKey
    attempt: int = 0

    def encode(self) -> str:
        """One line of text without a NUL."""
        return msgspec.json.encode((self.key.pod_uid, self.key.name, self.attempt)).decode()

    @staticmethod
    def decode(text: str | bytes) -> Identity | None:
        """From such a line; None where it is none."""
        try:
            uid, name, attempt = msgspec.json.decode(text, type=tuple[str, str, int])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return Identity(ContainerKey(uid, name), attempt) if uid and name else None


class Processes(Struct, frozen=True):
    """``state``: the processes of a container, which mean something during one boot only.

    ``supervisor`` is None for a process that somebody else started; ``note`` tells what the kernel
    refused; ``identity`` is None where an older version wrote it.
    """

    boot: str
    main: ProcessId
    supervisor: ProcessId | None
    note: str = ""
    identity: Identity | None = None

    def values(self) -> dict[str, str]:
        """The lines of the file."""
        values = {"pinfold-process": "1", "boot": self.boot}
        if self.supervisor is not None:
            values["supervisor"] = f"{self.supervisor.pid} {self.supervisor.start}"
        values |= {"main": f"{self.main.pid} {self.main.start}", "note": self.note}
        if self.identity is not None:
            values["identity"] = self.identity.encode()
        return values

    @staticmethod
    def of(values: Mapping[str, str]) -> Processes:
        """From the lines of the file; raises NonsenseError."""

        def process(word: str) -> ProcessId:
            pid, start = values[word].split(" ")
            return ProcessId(int(pid), int(start))

        try:
            return Processes(
                values["boot"],
                process("main"),
                process("supervisor") if "supervisor" in values else None,
                values["note"],
                Identity.decode(values["identity"]) if "identity" in values else None,
            )
        except (KeyError, ValueError):
            raise NonsenseError from None


class Exit(Struct, frozen=True):
    """``exit``: the end of a container; ``code`` None is not known, ``at`` seconds of the epoch."""

    code: int | None
    at: float
    message: str = ""

    def values(self) -> dict[str, str]:
        """The lines of the file."""
        code = "" if self.code is None else str(self.code)
        return {"code": code, "at": repr(self.at), "message": self.message}

    @staticmethod
    def of(values: Mapping[str, str]) -> Exit:
        """From the lines of the file; raises NonsenseError."""
        try:
            code = int(values["code"]) if values["code"] else None
            at, message = float(values["at"]), values["message"]
        except (KeyError, ValueError):
            raise NonsenseError from None
        if not isfinite(at) or not (code is None or code in _EXIT_CODES):
            raise NonsenseError
        return Exit(code, at, message)


class Spec(Struct, frozen=True):
    """What is read back of ``spec.json``; ``attached`` is a process that somebody else started."""

    identity: Identity
    attached: Processes | None = None
    keepsake: str = ""

    @staticmethod
    def of(data: bytes, *, has_sum: bool) -> Spec:
        """From the file's JSON, and whether there was a checksum with it; raises NonsenseError."""
        try:
            document = msgspec.json.decode(data, type=_SpecDocument)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NonsenseError(str(error)) from None
        if not (document.pod_uid and document.name):
            raise NonsenseError("it names no container")
        if document.version >= _VERSION and not has_sum:
            raise NonsenseError("it has no checksum")
        identity = Identity(ContainerKey(document.pod_uid, document.name), document.attempt)
        if document.attached is None:
            return Spec(identity, None, document.keepsake)
        boot, pid, start = document.attached
        attached = Processes(boot, ProcessId(pid, start), None, "", identity)
        return Spec(identity, attached, document.keepsake)


def spec_document(spec: ContainerSpec, attached: Processes | None) -> bytes:
    """``spec.json`` without its checksum.

    ``attached`` is the process of a container that somebody else started.
    """
    process = spec.process
    return msgspec.json.encode(
        _SpecDocument(
            _VERSION,
            spec.key.pod_uid,
            spec.key.name,
            spec.namespace,
            spec.pod_name,
            spec.attempt,
            tuple(_readable(argument) for argument in process.argv),
            {
                _readable(name): _readable(value)
                for name, value in {**process.env, **spec.env}.items()
            },
            None if process.working_dir is None else _readable(process.working_dir),
            spec.oom_score_adj,
            None if attached is None else (attached.boot, attached.main.pid, attached.main.start),
            _readable(spec.keepsake),
        )
    )


class _SpecDocument(msgspec.Struct, frozen=True):
    """``spec.json``; bytes that are no UTF-8 are escaped with backslashes."""

    version: int
    pod_uid: str
    name: str
    namespace: str
    pod_name: str
    attempt: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str | None
    oom_score_adj: int | None
    attached: tuple[str, int, int] | None = None
    """Boot, pid and start time of a process that somebody else started."""
    keepsake: str = ""


def _readable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
