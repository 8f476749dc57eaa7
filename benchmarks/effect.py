"""The effect: what pods feel of their neighbours, under policies none, static and dynamic.

    python -m benchmarks.effect [--work service|timers] [...]

`service` is an owner under open-loop load beside neighbours as clusters have them, `timers` a timer
and a busy loop beside busy pods; `--work service --help` tells the options of each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import effect_service, effect_timers

WORKS = {"service": effect_service.main, "timers": effect_timers.main}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the one that is asked for; return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    work = "service"
    if "--work" in given:
        at = given.index("--work")
        work = given[at + 1] if at + 1 < len(given) else ""
        del given[at : at + 2]
    if work not in WORKS:
        print(f"--work must be {' or '.join(WORKS)}, not {work!r}", file=sys.stderr)
        return 2
    return WORKS[work](given)


if __name__ == "__main__":
    sys.exit(main())
