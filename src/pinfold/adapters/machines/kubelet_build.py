"""The version of the kubelet that runs on this machine, from the file that it was started from.

A kubelet tells its version over the network only, to those whom it knows, and is not started a
second time to be asked.  Its executable holds what the Go linker was told
(``-X k8s.io/component-base/version.gitVersion=v1.36.2``), beside the version of its main module,
unless whoever built it left that out.  Nothing else of the file is looked at.

Source: Go's ``debug/buildinfo``; Kubernetes' ``hack/lib/version.sh``.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Final

_MAGIC: Final = b"\xff Go buildinf:"
_HEADER: Final = 32
_FLAGS_AT: Final = 15
_INLINE: Final = 2
"""The flag of Go 1.18 and later: the texts follow the header, each with its length."""
_SENTINEL: Final = 16
_ALIGNED: Final = 16
_MOST: Final = 1 << 20
_VERSION: Final = r"v\d{1,4}\.\d{1,4}\.\d{1,4}(?:[-+][0-9A-Za-z.+_-]{1,60})?"
_LINKED: Final = re.compile(rf"\bversion\.gitVersion=({_VERSION})(?![0-9A-Za-z.+_-])", re.ASCII)
_MODULE: Final = re.compile(
    rf"^path\tk8s\.io/kubernetes/cmd/kubelet\nmod\tk8s\.io/kubernetes\t({_VERSION})(?:\t|$)",
    re.MULTILINE | re.ASCII,
)
_NOT_RELEASED: Final = re.compile(r"v0\.|.*[-.]\d{14}-[0-9a-f]{12}", re.ASCII)


def running_kubelet(proc: Path = Path("/proc")) -> str:
    """The version of the kubelet that runs, such as ``v1.36.2``; "" where nobody can tell.

    That is where none runs, where its executable cannot be read (only root can) or does not tell,
    and where kubelets of several versions run, as in nodes that are containers.
    """
    found: set[str] = set()
    try:
        processes = [one for one in proc.iterdir() if one.name.isascii() and one.name.isdigit()]
    except OSError:
        return ""
    for process in processes:
        try:
            if (process / "comm").read_bytes().strip() == b"kubelet":
                found.add(version_of_executable(process / "exe"))
        except (OSError, ValueError):
            # It has ended meanwhile, is not ours to read, or is empty.
            continue
    return found.pop() if len(found) == 1 else ""


def version_of_executable(path: Path) -> str:
    """The version that a kubelet was built with; "" where its file does not tell.

    Raises:
        OSError: it cannot be read.
        ValueError: it is empty.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as held:
        return version_of_build(_build_text(held))


def version_of_build(text: str) -> str:
    """The version in a text of Go's build info; "" where it has none of a release."""
    linked = {found[1] for found in _LINKED.finditer(text)}
    if len(linked) == 1:
        return linked.pop()
    module = _MODULE.search(text)
    if linked or module is None or _NOT_RELEASED.match(module[1]):
        return ""
    return module[1]


def _build_text(held: mmap.mmap) -> str:
    at = held.find(_MAGIC)
    while at >= 0 and at % _ALIGNED:
        at = held.find(_MAGIC, at + 1)
    if at < 0 or len(held) < at + _HEADER or not held[at + _FLAGS_AT] & _INLINE:
        return ""
    at += _HEADER
    size = 0
    for _ in range(2):
        # Go's own version, and then the build's.
        at += size
        size, at = _length(held, at)
        if at < 0 or at + size > len(held) or size > _MOST:
            return ""
    return held[at + _SENTINEL : at + size - _SENTINEL].decode("utf-8", "replace")


def _length(held: mmap.mmap, at: int) -> tuple[int, int]:
    """A number of Go's ``Uvarint``, and where it ends; -1 where it does not."""
    number = 0
    for shift in range(0, 64, 7):
        if at >= len(held):
            break
        byte = held[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    return 0, -1
