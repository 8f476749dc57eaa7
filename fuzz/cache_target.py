"""What the kernel's resctrl says, damaged: a schemata that reads back, or an error in one line."""

from __future__ import annotations

from typing import Final

from fuzz.engine import Target
from pinfold.core.cache.schemata import SchemataError, format_schemata, parse_schemata


def run_schemata(data: bytes) -> None:
    """Take the bytes for the ``schemata`` of a group."""
    try:
        schemata = parse_schemata(data.decode("utf-8", "replace"))
    except SchemataError:
        return
    said = {line: domains for line, domains in schemata.items() if domains}
    if parse_schemata(format_schemata(schemata)) != said:
        raise RuntimeError("what is written reads back as something else")


def _files() -> list[bytes]:
    return [
        b"    L3:0=fffff;1=fffff\n    MB:0= 100;1= 100\n",
        b"L3DATA:0=fffff;1=fffff;2=3c0;3=fffff\nL3CODE:0=fffff;1=fffff;2=fffff;3=fffff\n",
        b"  SMBA:0=2048;1=2048\n    MB:0=2048;1=  16\n    L3:0=ffff;1=ffff\n    L2:0=f;7=f\n",
    ]


CACHE_TARGET: Final = Target("schemata", run_schemata, _files, (b"L3:", b"MB:", b"=", b";", b"\n"))
