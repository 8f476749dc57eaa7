"""A block device of zeros, from a module of the kernel that a guest runs."""

from __future__ import annotations

import ctypes
import lzma
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.scenes.waiting import wait_until

MODULES: Final = os.environ.get("PINFOLD_TEST_MODULES", "")
"""Below which the modules of this kernel are."""
_FINIT_MODULE: Final = {"x86_64": 313, "aarch64": 273}


@contextmanager
def block_device() -> Iterator[Path]:
    """A device of 1 GiB that answers at once and needs no memory; it stays as long as the guest."""
    if not MODULES:
        pytest.skip("needs a guest's kernel (make guest has one)")
    device = Path("/dev/nullb0")
    if not device.exists():
        _load("configfs")
        _load("null_blk", "gb=1 bs=4096 nr_devices=1 submit_queues=1 queue_mode=2")
    wait_until(device.exists)
    yield device


def number(device: Path) -> str:
    """What the kernel calls a device in the files of cgroups: ``MAJOR:MINOR``."""
    found = device.stat().st_rdev
    return f"{os.major(found)}:{os.minor(found)}"


def _load(name: str, options: str = "") -> None:
    """Load a module, unless it is there."""
    if Path("/sys/module", name).exists():
        return
    (packed,) = Path(MODULES).glob(f"**/{platform.release()}/kernel/**/{name}.ko.xz")
    file = os.memfd_create(name)
    try:
        with open(file, "wb", closefd=False) as out:
            out.write(lzma.decompress(packed.read_bytes()))
        libc = ctypes.CDLL(None, use_errno=True)
        call = _FINIT_MODULE[platform.machine()]
        if libc.syscall(call, file, options.encode(), 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    finally:
        os.close(file)
