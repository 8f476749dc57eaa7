"""Where what belongs to Pinfold itself is on a machine, unless somebody says otherwise."""

from __future__ import annotations

import os
from typing import Final

SOCKET_VARIABLE: Final = "PINFOLD_SOCKET"
"""The variable of the environment that names the agent's socket."""


def default_socket() -> str:
    """Where an agent of this user listens, unless it was told otherwise."""
    return f"{runtime_folder()}/pinfold.sock"


def runtime_folder() -> str:
    """Where this user's files are that no reboot outlives."""
    if os.geteuid() == 0:
        return "/run/pinfold"
    folder = os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/pinfold-{os.geteuid()}"  # noqa: S108 - owner checked by those who use it
    return f"{folder}/pinfold"
