"""Who may run on shielded CPUs now."""

from __future__ import annotations

from pathlib import Path

from pinfold.adapters.shield.kernel import Method
from pinfold.adapters.shield.record import Shield
from pinfold.adapters.shield.threads import Thread, everybody, thread
from pinfold.linux.affinity import allowed
from pinfold.linux.processes import parse_cgroups


def foreign_threads(shield: Shield) -> list[Thread]:
    """The threads that may run on shielded CPUs, without those that may by right.

    These are the kept cgroups' and those that the kernel binds to their CPU.  Not told apart from
    foreign ones: who was put there on purpose, into the root cgroup or another of his own.
    """
    controller = "cpuset" if shield.method is Method.CGROUP1 else ""
    kept = [Path("/", name.lstrip("/")) for name in shield.keep]
    found = []
    for tid in everybody():
        mask = allowed(tid)
        if mask is None or mask.isdisjoint(shield.cpus):
            continue
        one = thread(tid)
        if one is None or one.is_bound:
            continue
        cgroup = _cgroup(tid, controller)
        if any(cgroup.is_relative_to(folder) for folder in kept):
            continue
        # Asked once more: on cgroup v1 one that ends is shown in the root.
        again = thread(tid)
        if again is not None and again.start_time == one.start_time:
            found.append(one)
    return found


def _cgroup(tid: int, controller: str) -> Path:
    try:
        text = Path(f"/proc/{tid}/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return Path("/")
    return Path(parse_cgroups(text).get(controller, "/"))
