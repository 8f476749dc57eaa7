"""The kubelet's checksum of a checkpoint: FNV-1a over a dump of the Go object.

Upstream: ``pkg/kubelet/checkpointmanager/checksum`` (the dump is ``dump.ForHash``, the form is
go-spew's ``%#v`` with sorted keys; :mod:`pinfold.state.go_value` prints it).
"""

from __future__ import annotations

from typing import Final

_OFFSET: Final = 0x811C9DC5
_PRIME: Final = 0x01000193


def fnv1a32(data: bytes) -> int:
    """The 32-bit FNV-1a hash of ``data``.

    >>> hex(fnv1a32(b"a"))
    '0xe40c292c'
    """
    value = _OFFSET
    for byte in data:
        value = ((value ^ byte) * _PRIME) & 0xFFFFFFFF
    return value


def checksum_of_dump(dump: str) -> int:
    """The checksum of an object whose dump is ``dump``."""
    return fnv1a32(dump.encode("utf-8", "surrogatepass"))
