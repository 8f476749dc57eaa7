"""What a request brings along, read strictly: a body of JSON, query parameters."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import CollectionType, StructType, type_info
from starlette.requests import Request

from pinfold.documents.records import Record
from pinfold.web.answers import Refusal
from pinfold.web.operations import BODY_LIMIT, HISTORY_DEFAULT, HISTORY_LIMIT

_T = TypeVar("_T", bound=Record)
_Answer = TypeVar("_Answer")


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
        raise Refusal(400, "the body is no JSON object", "send a JSON object")
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


async def decoded(request: Request, form: type[_T]) -> _T:
    """The body as one of the API's records, which knows each of its fields.

    Raises:
        Refusal: see :func:`json_object`; a field is missing, unknown, or of another kind.
    """
    body = await json_object(request)
    try:
        return msgspec.convert(body, form)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).replace("`", "'").partition(" - at '$.")
        where = f"{place[:-1]}: " if place else ""
        known = ", ".join(_fields_at(form, place[:-1]))
        raise Refusal(400, where + problem, f"there are {known}" if known else "") from None


def _fields_at(form: type[Record], place: str) -> tuple[str, ...]:
    """The fields of the object at a place such as ``spec.containers[0]``; none of what is none."""
    found = type_info(form)
    for name in filter(None, place.replace("[", ".[").split(".")):
        if isinstance(found, CollectionType) and name.startswith("["):
            found = found.item_type
        elif isinstance(found, StructType):
            found = next(one.type for one in found.fields if one.encode_name == name)
        else:
            return ()
    if not isinstance(found, StructType):
        return ()
    return tuple(one.encode_name for one in found.fields)


def only_parameters(request: Request, known: tuple[str, ...]) -> None:
    """See that the query has no other parameters, and none of them twice; raises Refusal."""
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise Refusal(400, f"unknown parameter {name!r}", there)
        if names.count(name) > 1:
            raise Refusal(400, f"parameter {name!r} is given twice", "give it once")


def seconds(request: Request, name: str) -> float | None:
    """A parameter that is a number of seconds; None when it is not given; raises Refusal."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        # Python takes more for a number than anybody means: 1_0, and the digits of other scripts.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise Refusal(400, f"{name}={text[:40]!r}: must be a number of seconds, 0 or more")
    return value


def limit(request: Request, name: str = "limit") -> int:
    """A parameter that bounds the length of an answer; raises Refusal."""
    text = request.query_params.get(name)
    if text is None:
        return HISTORY_DEFAULT
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= value <= HISTORY_LIMIT:
        problem = f"{name}={text[:40]!r}: must be a whole number from 1 to {HISTORY_LIMIT}"
        raise Refusal(400, problem)
    return value


def whole_number(request: Request, name: str) -> int | None:
    """A parameter that is a count; None when it is not given; raises Refusal."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refusal(400, f"{name}={text[:40]!r}: must be a whole number, 0 or more")
    return int(text)


def flag(request: Request, name: str, *, default: bool = False) -> bool:
    """A parameter that is ``true`` or ``false``; raises Refusal."""
    text = request.query_params.get(name, "true" if default else "false")
    if text not in ("true", "false"):
        raise Refusal(400, f"{name}={text[:40]!r}: must be true or false")
    return text == "true"


async def hung_up(request: Request) -> None:
    """Return when the client has gone; the body was read."""
    with suppress(RuntimeError):  # Starlette's, where it was told already
        while (await request.receive())["type"] != "http.disconnect":
            pass


async def while_there(request: Request, work: Coroutine[Any, Any, _Answer]) -> _Answer:
    """What the work gives, which changes nothing: it is cancelled when the client has gone.

    Raises:
        Refusal: nobody waits for it any more.
    """
    task = asyncio.create_task(work)
    left = asyncio.create_task(hung_up(request))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Refusal(503, "the client has gone")
    finally:
        task.cancel()
        left.cancel()
        await asyncio.gather(task, left, return_exceptions=True)
