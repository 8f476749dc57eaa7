"""One connection of an API server to the webhook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from pinfold.documents.admission_review import FailureStatus
from pinfold.web.answers import encoded
from pinfold.web.limited_connection import LimitedConnection, Limits

REASONS: Final[Mapping[int, str]] = {
    400: "BadRequest",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "Timeout",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
"""The ``reason`` of a Status by its code, as the Kubernetes API has them."""

LIMITS: Final = Limits(request=4.0, answer=5.0, idle=90, connections=2000)
"""An API server waits for 5 s, and keeps a connection for 90."""


def failure(code: int, message: str, remedy: str = "") -> bytes:
    """The body of an answer that is no decision."""
    text = f"{message} ({remedy})" if remedy else message
    return encoded(FailureStatus(message=f"pinfold: {text}", reason=REASONS[code], code=code))


class WebhookConnection(LimitedConnection):
    """Anybody may ask who can reach it; refusals are those of the Kubernetes API."""

    stopping: ClassVar = ("this replica is stopping", "the API server asks another one")

    @classmethod
    def refusal(cls, status: int, message: str, remedy: str) -> bytes:
        """A ``Status``."""
        return failure(status, message, remedy)
