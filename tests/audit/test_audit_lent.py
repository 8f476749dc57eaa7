"""The audit's rules about CPUs that are lent: who may run there, and who may not all the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pinfold.audit.audit import audit, audit_document
from pinfold.audit.record import AuditRecord, KnownContainer
from pinfold.audit.snapshot import KernelSnapshot, Task
from pinfold.core.values.cpuset import CPUSet
from pinfold.render.audit_text import render_audit
from pinfold.render.terminal import Style
from tests.scenes.audited import CLEAN, DB, RECORD, cpus, findings, group, groups, only, task

LENT = replace(DB, lent=CPUSet([3]))
SIDE = "/pinfold/idle"


def node(*tasks: Task, ranked: bool = True, effective: str = "0-1,3-7") -> KernelSnapshot:
    """A node that lends CPU 3."""
    return replace(
        CLEAN,
        tasks=(*CLEAN.tasks, *tasks),
        cpusets={**CLEAN.cpusets, **groups(group("/pinfold", "", "0-7"), group(SIDE, effective))},
        idle=frozenset([SIDE] if ranked else []),
    )


def borrower(allowed: str, last: int) -> Task:
    place = f"{SIDE}/pod-web/main"
    return replace(task(400, place, allowed, last), cpu_cgroup=place)


RECORDED = replace(RECORD, owners=(LENT,), idle_side=(SIDE,))


def test_who_borrows_what_is_lent_is_no_finding() -> None:
    assert findings(node(borrower("0-1,3-7", 3)), RECORDED) == {}


@pytest.mark.parametrize(
    ("snapshot", "record", "said"),
    [
        pytest.param(
            node(borrower("0-7", 2)),
            RECORDED,
            "1 thread of 1 process that borrow may run on the exclusive CPUs 2; 1 ran",
            id="not lent",
        ),
        pytest.param(
            node(borrower("0-1,3-7", 3), ranked=False),
            RECORDED,
            "that nobody can push aside (cpu.idle 0) may run on the exclusive CPUs 3; 1 ran",
            id="without cpu.idle",
        ),
        pytest.param(
            node(borrower("0-1,3-7", 3)),
            replace(RECORDED, owners=(DB,)),
            "may run on the exclusive CPUs 3; 1 ran",
            id="nobody says that it is",
        ),
        pytest.param(
            node(task(401, "/", "0-1,3-7", 3)),
            RECORDED,
            "may run on the exclusive CPUs 3; 1 ran",
            id="a stranger",
        ),
    ],
)
def test_everybody_else_is(snapshot: KernelSnapshot, record: AuditRecord, said: str) -> None:
    assert said in only("stranger-ran", snapshot, record).what


def test_it_is_shown_what_is_lent() -> None:
    report = audit(node(), RECORDED)
    assert audit_document(report).owners[0].lent == "3"
    assert "CPUs 2-3, of which 3 are lent" in render_audit(report, Style())
    assert not audit_document(audit(CLEAN, RECORD)).owners[0].lent


def test_an_agent_says_it() -> None:
    assert KnownContainer(lent=cpus("3")).lent == cpus("3")
