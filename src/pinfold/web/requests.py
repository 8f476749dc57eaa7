"""What a request brings along, read strictly: a body of JSON, query parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from pinfold.web.answers import Refusal
from pinfold.web.operations import BODY_LIMIT, HISTORY_LIMIT


async def json_object(request: Request) -> dict[str, Any]:
    """The body, which is one JSON object.

    Raises:
        Refusal: it is too large, not JSON, or not an object.
    """
    text = await _body(request)
    if not text:
        raise Refusal(400, "the body is empty", "send a JSON object")
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"the body is not JSON: {error}", "send a JSON object") from None
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply", "send a JSON object") from None
    if not isinstance(content, dict):
        raise Refusal(400, f"the body is {_kind(content)}, not an object", "send a JSON object")
    return content


async def _body(request: Request) -> bytes:
    limit = Refusal(
        413,
        f"the body has more than {BODY_LIMIT} bytes",
        "send one pod at a time",
    )
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > BODY_LIMIT:
        raise limit
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_LIMIT:
            raise limit
    return bytes(body)


def field(body: Mapping[str, Any], name: str, kind: type[Any]) -> Any:  # noqa: ANN401 - any kind
    """A field of a body.

    Raises:
        Refusal: it is missing, or not of this kind.
    """
    value = body.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = {dict: "an object", int: "a whole number"}[kind]
        problem = "is missing" if name not in body else f"is {_kind(value)}"
        raise Refusal(400, f"{name}: {problem}", f"send {wanted} in the field {name}")
    return value


def only_fields(body: Mapping[str, Any], *known: str) -> None:
    """See that nothing else is in a body: a misspelt field would be passed over in silence.

    Raises:
        Refusal: there is.
    """
    for name in body:
        if name not in known:
            raise Refusal(400, f"unknown field {name!r}", f"there are {', '.join(known)}")


def only_parameters(request: Request, known: tuple[str, ...]) -> None:
    """See that the query has no other parameters, and none of them twice.

    Raises:
        Refusal: it has.
    """
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise Refusal(400, f"unknown parameter {name!r}", there)
        if names.count(name) > 1:
            raise Refusal(400, f"parameter {name!r} is given twice", "give it once")


def seconds(request: Request, name: str) -> float | None:
    """A parameter that is a number of seconds; None when it is not given.

    Raises:
        Refusal: it is not a number, or negative.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise Refusal(400, f"{name}={text[:40]!r}: must be a number of seconds, 0 or more")
    return value


def limit(request: Request, name: str = "limit", default: int = 100) -> int:
    """A parameter that bounds the length of an answer.

    Raises:
        Refusal: it is not between 1 and :data:`HISTORY_LIMIT`.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= value <= HISTORY_LIMIT:
        problem = f"{name}={text[:40]!r}: must be a whole number from 1 to {HISTORY_LIMIT}"
        raise Refusal(400, problem)
    return value


def whole_number(request: Request, name: str) -> int | None:
    """A parameter that is a count; None when it is not given.

    Raises:
        Refusal: it is not a whole number, or negative.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refusal(400, f"{name}={text[:40]!r}: must be a whole number, 0 or more")
    return int(text)


def flag(request: Request, name: str) -> bool:
    """A parameter that is ``true`` or ``false``, which is what it is without.

    Raises:
        Refusal: it is neither.
    """
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise Refusal(400, f"{name}={text[:40]!r}: must be true or false")
    return text == "true"


def _kind(value: object) -> str:
    names: dict[type[Any], str] = {
        bool: "true or false",
        dict: "an object",
        float: "a number with a fraction",
        int: "a whole number",
        list: "a list",
        str: "a text",
    }
    return names.get(type(value), "null")
