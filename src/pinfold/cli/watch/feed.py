"""The events of an agent, as long as anybody wants them; also of one that is away for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import click
import msgspec

from pinfold.cli.client import Client, RefusedError
from pinfold.documents.live.event import Event, Whole
from pinfold.documents.machine import Machine
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.formats.event_stream import EventStream, StreamError

AGAIN: Final = 1.0
"""Seconds between two tries to reach an agent, and between two questions to one without events."""

_UNKNOWN: Final = (404, 405)


def follow(client: Client) -> Iterator[Event]:
    """The events, for ever; ``away`` whenever the agent does not answer, which is tried again.

    After an interruption comes a ``whole``: so it is told that the agent is back, also where
    nothing has changed.  An agent that is too old to tell events is asked each second, and all it
    says is a ``whole``.

    Raises:
        RefusedError, NoAgentError: it was not there at the beginning.
    """
    last_id, has_begun = "", False
    while True:
        problem = "the agent has stopped"
        try:
            for event in _told_or_asked(client):
                last_id, has_begun = event.id, True
                yield event
        except click.ClickException as error:
            if not has_begun:
                raise
            problem = error.message
        yield Event(id=last_id, at=time.time(), kind="away", problem=problem)
        time.sleep(AGAIN)


def _told_or_asked(client: Client) -> Iterator[Event]:
    try:
        yield from _told(client)
    except RefusedError as error:
        if error.status not in _UNKNOWN:
            raise
        yield from _asked(client)


def _told(client: Client) -> Iterator[Event]:
    wire = EventStream()
    try:
        for piece in client.stream("/v1/events"):
            for message in wire.feed(piece):
                yield msgspec.json.decode(message.data, type=Event)
    except (StreamError, msgspec.DecodeError) as error:
        raise RefusedError(
            0, f"this program does not understand the agent's events: {error}"
        ) from None


def _asked(client: Client) -> Iterator[Event]:
    machine = client.read("/v1/machine", Machine)
    while True:
        status, node = client.read("/v1/status", Status), client.read("/v1/node", Node)
        whole = Whole(status=status, machine=machine, node=node)
        yield Event(id="", at=time.time(), kind="whole", whole=whole)
        time.sleep(AGAIN)
