"""One connection of a browser."""

from __future__ import annotations

from typing import ClassVar

from pinfold.web.limited_connection import LimitedConnection


class PageConnection(LimitedConnection):
    """Anybody may connect who reaches the port; who is let in is the door's matter."""

    stopping: ClassVar = ("the page is not served any more", "start it again: pinfold serve")
