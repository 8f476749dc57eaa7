"""Compression that is made once for all: each message is a block of its own in everybody's stream.

A scene of 512 CPUs and 250 pods is 113 kB, and 8 kB like this, which counts where a port is
forwarded through an API server.
"""

from __future__ import annotations

import gzip
import zlib
from functools import lru_cache
from typing import Final

from starlette.requests import Request

STREAM_BEGINS: Final = bytes.fromhex("1f8b08000000000000ff")
"""The header of gzip (RFC 1952, 2.3) of a stream that has no end."""

_LEVEL: Final = 5
_NO_HEADER: Final = -15


def wants_gzip(request: Request) -> bool:
    """Whether who asks takes it."""
    told = request.headers.get("accept-encoding", "").replace(" ", "").lower()
    return "gzip" in told.split(",")


@lru_cache(maxsize=16)
def block(message: bytes) -> bytes:
    """A part of a stream of gzip: whole bytes, and nothing in it refers to what was before."""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _NO_HEADER)
    return deflate.compress(message) + deflate.flush(zlib.Z_SYNC_FLUSH)


@lru_cache(maxsize=16)
def compressed(content: bytes) -> bytes:
    """A whole file."""
    return gzip.compress(content, _LEVEL, mtime=0)
