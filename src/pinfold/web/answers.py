"""Answers of the API: documents, and refusals that say what is wrong and what helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pinfold.core.pod.api import PodError
from pinfold.documents.api import Error, Fault
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.ports.errors import PortError
from pinfold.ports.held_process import ForeignProcessError

CODES: Final[Mapping[int, str]] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    409: "AlreadyExists",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
"""The ``code`` of an error document: the reasons of the Kubernetes API's statuses."""


class Refusal(Exception):  # noqa: N818 - an answer, of which some are nobody's error
    """A request that is answered with an error document.

    ``status`` is one of :data:`CODES`; ``remedy`` is "" where nothing helps.
    """

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.remedy = remedy


class Document(Response):
    """JSON; msgspec encodes some ten times faster than the standard library."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """The bytes."""
        return encoded(content)


def encoded(content: object) -> bytes:
    """A document as JSON."""
    return msgspec.json.encode(content, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def error_document(status: int, message: str, remedy: str = "") -> Error:
    """The body of every answer from 400 on."""
    return Error(error=Fault(code=CODES[status], message=message, remedy=remedy))


def error_answer(error: Exception) -> Document:
    """The answer to a request that failed; what is not foreseen is a fault of the agent."""
    refusal = _refusal(error)
    content = error_document(refusal.status, refusal.message, refusal.remedy)
    return Document(content, refusal.status)


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, PodError):
        return Refusal(400, str(error), "correct this field of the manifest")
    if isinstance(error, UnknownPodError):
        return Refusal(404, str(error), "pinfold status shows the pods")
    if isinstance(error, ForeignProcessError):
        return Refusal(403, str(error), "send the pid of the process that asks, or of its child")
    if isinstance(error, NameTakenError):
        return Refusal(409, str(error), error.remedy)
    if isinstance(error, PortError):
        return Refusal(503, error.problem, error.remedy)
    if isinstance(error, HTTPException) and error.status_code in CODES:
        return Refusal(error.status_code, error.detail)
    return Refusal(500, "the agent failed to answer this request", "its log says why")
