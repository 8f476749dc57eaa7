"""Watches where containers may run while CPUs move; a process of its own, of nobody else's code.

``python cpu_witness.py RESULT owner:NAME=PID ... shared:NAME=PID ...`` reads the ``status`` of all
threads below each process, twice in a round, until its standard input ends; then it writes RESULT,
a JSON document.  What two had before and after one moment they had at that moment: so nothing that
moves between two looks is taken for a CPU in common.
"""

from __future__ import annotations

import json
import select
import sys
import time
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAUSE = 0.01


def parse(text: str) -> frozenset[int]:
    """A list as the kernel writes it."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def below(pid: int) -> list[int]:
    """A process and all that it has begun."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(found for child in children for found in below(int(child)))]


def allowed(pid: int) -> frozenset[int]:
    """Where the threads of a process, and of what it has begun, may run."""
    found: frozenset[int] = frozenset()
    for process in below(pid):
        for status in Path(f"/proc/{process}/task").glob("*/status"):
            try:
                text = status.read_text()
            except OSError:
                continue
            found |= parse(text.split("Cpus_allowed_list:")[1].split()[0])
    return found


def watch(owners: dict[str, int], everybody: dict[str, int]) -> dict[str, Any]:
    """Look until standard input ends, and once at least."""
    pairs = [pair for pair in combinations(everybody, 2) if owners.keys() & set(pair)]
    changes: dict[str, list[tuple[float, list[int]]]] = {name: [] for name in everybody}
    strangers: list[str] = []
    rounds = 0
    is_over = False
    while not is_over:
        is_over = bool(select.select([sys.stdin], [], [], PAUSE)[0])
        first = {name: allowed(pid) for name, pid in everybody.items()}
        second = {name: allowed(pid) for name, pid in everybody.items()}
        at = time.time()
        rounds += 1
        for name, cpus in second.items():
            if not changes[name] or changes[name][-1][1] != sorted(cpus):
                changes[name].append((at, sorted(cpus)))
        for one, other in pairs:
            if first[one] == second[one] and first[other] == second[other]:
                shared = first[one] & first[other]
                if shared:
                    strangers.append(f"{one} and {other} have {sorted(shared)}")
    return {"rounds": rounds, "changes": changes, "strangers": strangers}


@contextmanager
def witness(
    result: Path, owners: Mapping[str, int], shared: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """A witness until the end of the block, which then has what it saw: name -> changes."""
    told: dict[str, Any] = {}
    kinds = (("owner", owners), ("shared", shared))
    names = [f"{kind}:{name}={pid}" for kind, some in kinds for name, pid in some.items()]
    command = [sys.executable, "-I", "-S", __file__, str(result), *names]
    with Popen(command, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield told
        finally:
            process.stdin.close()
            process.wait(60)
    told |= json.loads(result.read_text())


def main() -> None:
    """See the module."""
    everybody: dict[str, int] = {}
    owners: dict[str, int] = {}
    for word in sys.argv[2:]:
        kind, _, rest = word.partition(":")
        name, _, pid = rest.rpartition("=")
        everybody[name] = int(pid)
        if kind == "owner":
            owners[name] = int(pid)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    Path(sys.argv[1]).write_text(json.dumps(watch(owners, everybody)))


if __name__ == "__main__":
    main()
