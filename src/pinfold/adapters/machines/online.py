"""The CPUs that are online now, and the kernel's word the moment that one has come or gone.

Source: the kernel's ``lib/kobject_uevent.c`` (netlink, ``NETLINK_KOBJECT_UEVENT``): each message
begins with ``ACTION@DEVPATH``.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from pinfold.core.values.cpuset import CPUSet

ONLINE: Final = Path("/sys/devices/system/cpu/online")


_KOBJECT_UEVENT: Final = 15
_KERNEL_GROUP: Final = 1
_LARGEST: Final = 64 * 1024
_OF_A_CPU: Final = re.compile(rb"(?:online|offline|add|remove)@/devices/system/cpu/cpu[0-9]+\0")


def online_cpus(file: Path = ONLINE) -> CPUSet:
    """Read the kernel's list; cheap enough for several times a second.

    Raises:
        OSError: there is no such file.
        CPUSetError: it holds no list.
    """
    return CPUSet.parse(file.read_text(encoding="ascii").strip())


def is_of_a_cpu(message: bytes) -> bool:
    """Whether a message of the kernel tells that a CPU came or went."""
    return _OF_A_CPU.match(message) is not None


async def hotplug_events() -> AsyncIterator[None]:
    """Something each time that a CPU may have gone or come, for ever.

    Raises:
        OSError: the kernel does not tell (a sandbox without netlink).
    """
    loop = asyncio.get_running_loop()
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _KOBJECT_UEVENT) as events:
        events.bind((0, _KERNEL_GROUP))
        while True:
            try:
                message = await loop.sock_recv(events, _LARGEST)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                yield None  # more came than could be kept: one of them may have been a CPU's
            else:
                if is_of_a_cpu(message):
                    yield None
