"""What the kernel writes of processes and mounts, damaged: a value, or an error in one line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from fuzz.engine import Target
from pinfold.linux.mounts import parse_mountinfo
from pinfold.linux.processes import parse_cgroups, parse_stat


def run_proc(data: bytes) -> None:
    """Take the bytes for a ``stat`` file, a ``cgroup`` file and a table of mounts."""
    text = data.decode("utf-8", "replace")
    with suppress(ValueError):
        stat = parse_stat(text)
        if f"({stat.comm})" not in text:
            raise RuntimeError("the name is not in the file")
    if any(not path.startswith("/") for path in parse_cgroups(text).values()):
        raise RuntimeError("a cgroup that is no path")
    for mount in parse_mountinfo(data.decode("utf-8", "surrogateescape")):
        if not mount.kind and not mount.options:
            raise RuntimeError("a mount of nothing")


def _files() -> list[bytes]:
    return [
        Path("/proc/self/stat").read_bytes(),
        b"42 (a) (b) S 1 7 7 0 -1 4194560" + b" 0" * 43,
        Path("/proc/self/cgroup").read_bytes(),
        Path("/proc/self/mountinfo").read_bytes()[:8192],
        b"34 31 0:31 /a\\040b /sys/fs/cgroup rw,relatime shared:3 - cgroup cgroup rw,cpuset\n",
    ]


LINUX_TARGET: Final = Target("proc", run_proc, _files, (b") ", b" - ", b"\\040", b"cgroup2", b"Z"))
