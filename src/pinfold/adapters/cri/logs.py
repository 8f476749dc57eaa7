"""Rotates the logs that a container runtime writes, as the kubelet does.

The runtime writes for ever into the file that it has open; so the file is given another name, and
the runtime told to open its log anew (ReopenContainerLog).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import CriClient, CriError
from pinfold.logs.layout import LogLimits, parts, put_aside, remove_older


async def rotate(client: CriClient, container_id: str, file: Path, limits: LogLimits) -> str:
    """Rotate a running container's log where it is too large; "", or what went wrong."""
    try:
        aside = await asyncio.to_thread(_put_aside, file, limits)
    except OSError as error:
        return f"{file} cannot be rotated: {error.strerror}"
    if aside is None:
        return ""
    request = pb.ReopenContainerLogRequest(container_id=container_id)
    try:
        await client.call("ReopenContainerLog", request, pb.ReopenContainerLogResponse)
    except CriError as error:
        # It is written to on and on; under its own name it is found, and tried again.
        with suppress(OSError):
            await asyncio.to_thread(_put_back, aside, file)
        return f"{file} cannot be rotated: {error}"
    return ""


def _put_back(aside: Path, file: Path) -> None:
    if not file.exists():
        aside.rename(file)


def _put_aside(file: Path, limits: LogLimits) -> Path | None:
    """The name of the file that the runtime writes to and is to leave; None where it may go on."""
    remove_older(file)
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        # Nothing was written, or an agent was killed before it had told the runtime.
        return next(reversed(parts(file)), None)
    return put_aside(file, limits) if size >= limits.size else None
