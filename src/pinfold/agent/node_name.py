"""What the node of an agent is called."""

from __future__ import annotations

import os
import socket
from typing import Final

from pinfold.config.section import AgentSection

NODE_NAME: Final = "NODE_NAME"


def node_name(section: AgentSection) -> str:
    """What the cluster calls this node; without one it has the name of the host."""
    return section.cluster.node_name or os.environ.get(NODE_NAME) or socket.gethostname().lower()
