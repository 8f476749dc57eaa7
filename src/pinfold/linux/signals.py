"""Signals to exactly the process that is meant, whoever has its pid by then.

Source: pidfd_open(2), pidfd_send_signal(2); Linux 5.3.
"""

from __future__ import annotations

import os
import signal

from pinfold.linux.descriptors import gone_or_raise
from pinfold.linux.processes import stat_of


def open_process(pid: int, start: int) -> int | None:
    """A descriptor of exactly this process, None when it is gone; ``start``: ticks since the boot.

    Raises:
        NoRoomError: nobody knows whether it is there.
        OSError: the kernel has no such descriptors.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError, OverflowError):
        return None
    except OSError as error:
        gone_or_raise(f"process {pid}", error)
        raise
    # The descriptor came first: the process that it means cannot change any more.
    is_same = False
    try:
        stat = stat_of(pid)
        is_same = stat is not None and stat.start == start
    finally:
        if not is_same:
            os.close(descriptor)
    return descriptor if is_same else None


def send_signal(pid: int, start: int, number: int) -> None:
    """Send a signal to exactly this process; one that is gone is no error.

    Raises:
        NoRoomError: nobody knows whether it is there.
        OSError: it may not be signalled, or there is no such signal.
        OverflowError: there is no such signal.
    """
    descriptor = open_process(pid, start)
    if descriptor is None:
        return
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)
