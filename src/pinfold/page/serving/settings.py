"""How the page is served."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

DEFAULT_LISTEN: Final = "127.0.0.1:7468"

TOKEN_FILE: Final = "page-token"  # noqa: S105 - the name of its file
"""The name of the token's file, in the folder of the agent's socket."""


class PageSettings(Struct, frozen=True, kw_only=True):
    """What the options of ``pinfold serve`` say.

    Attributes:
        socket: the agent's.
        listen: ``HOST:PORT``; port 0 takes one that is free.
        token_file: where the token is.
        makes_token: whether that is made when it is missing; else it is somebody else's, such as a
            Secret's, and is waited for.
        host_names: under which names the page is opened beside those of this machine itself.
    """

    socket: Path
    listen: str = DEFAULT_LISTEN
    token_file: Path
    makes_token: bool = True
    host_names: tuple[str, ...] = ()
