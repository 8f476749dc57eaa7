"""The history as text: what each kind of entry says, and what nobody knows yet."""

from __future__ import annotations

import msgspec
import pytest

from pinfold.documents.api import HistoryEntry
from pinfold.documents.explanation import ExplainedBubble, ExplainedContainer, Explanation
from pinfold.documents.history import (
    CacheGiven,
    Controlled,
    Displaced,
    Drifted,
    InterruptsKeptOff,
    QuotaChanged,
    Resized,
    SchedulingDomain,
    Started,
    StaysShared,
    TakenBack,
)
from pinfold.documents.records import Record
from pinfold.render.history_text import render_history


def decided(*containers: tuple[str, str | None], bubble: str = "", pool: str = "") -> Record:
    """A pod that was admitted, with what it has as a whole."""
    whole = ExplainedBubble(cpus=bubble, pool=pool, memory=(), request="", steps=())
    return Explanation(
        namespace="default",
        name="db",
        qos="Guaranteed",
        admitted=True,
        reason=None,
        message=None,
        topology_manager_policy="none",
        bubble=whole if bubble else msgspec.UNSET,
        containers=[
            ExplainedContainer(
                name=name, request="", hints=(), merged=None, constraint="", cpus=cpus, steps=()
            )
            for name, cpus in containers
        ],
        remedies=(),
    )


def entry(kind: str, document: Record | None, pod: str | None = "default/db") -> HistoryEntry:
    told = None if document is None else msgspec.to_builtins(document)
    return HistoryEntry(number=1, at=0.0, kind=kind, pod_uid="u", pod=pod, document=told)


@pytest.mark.parametrize(
    ("kind", "document", "words"),
    [
        (
            "admitted",
            decided(("own", "2-3"), ("log", None), bubble="2-7", pool="4-7"),
            "bubble 2-7, pod shared pool 4-7; own: CPUs 2-3; log: shares in the bubble",
        ),
        ("admitted", decided(("own", "2"), ("log", None)), "own: CPUs 2; log: shared pool"),
        (
            "repaired",
            Drifted(container="app", expected="1", found="0-1", repaired=True, problem=""),
            "app should have 1, has 0-1; repaired",
        ),
        (
            "drifted",
            Drifted(container=None, expected="0", found="0-1", repaired=False, problem="EBUSY"),
            "the shared pool should have 0, has 0-1; not repaired: EBUSY",
        ),
        ("repaired", Started(start="pod a is gone"), "pod a is gone"),
        (
            "displaced",
            Displaced(container="app", cpus="1", offline="1", place="shared", problem=""),
            "app: in the shared pool; CPUs 1 offline",
        ),
        (
            "controlled",
            Controlled(
                rank="lending",
                why="idle",
                containers=["default/db/app"],
                cpus="1",
                problem="",
                unsaid=2,
            ),
            "lending: idle; 2 more like it before",
        ),
        (
            "taken-back",
            TakenBack(cpus="1", uncapped=True, why="the lease was over"),
            "lent CPUs 1; the cap of best-effort containers; the lease was over",
        ),
        (
            "resized",
            Resized(container="a", cpus=2, before="1", after="1-2", reason=None, message=None),
            "a: CPUs 1 -> 1-2",
        ),
        (
            "infeasible",
            Resized(container="a", cpus=9, before="1", after="1", reason="No", message="few"),
            "a to 9 CPUs: No: few",
        ),
        (
            "domain",
            SchedulingDomain(
                container="a", cpus="1", wished="isolated", found="isolated", problem=""
            ),
            "a: partition isolated of CPUs 1; in force: isolated",
        ),
        (
            "interrupts",
            InterruptsKeptOff(
                cpus="1", others="0", kept=3, moved=["irq 24 eth0"], contested=[], fixed=[]
            ),
            "3 are kept off CPUs 1, on 0; moved: irq 24 eth0",
        ),
        (
            "quota",
            QuotaChanged(
                quota="team/cpus",
                change="changed",
                source="api",
                hard={"pods": "3"},
                exceeded=["pods"],
            ),
            "team/cpus changed (api): pods 3; more is in use already of pods",
        ),
        ("stays-shared", StaysShared(container="a", problem="none fit"), "a: none fit"),
        (
            "cache",
            CacheGiven(container="a", schemata="L3:0=f", reason=None, message=None),
            "a: L3:0=f",
        ),
        ("released", None, ""),
        ("a-kind-to-come", Started(start="x"), ""),
        ("moved", Started(start="of another form"), ""),
    ],
)
def test_what_an_entry_says(kind: str, document: Record | None, words: str) -> None:
    line = render_history([entry(kind, document)])
    assert line.partition("  ")[2] == f"{kind}  default/db  {words}".rstrip()


def test_the_newest_is_the_last_and_the_node_has_no_pod() -> None:
    text = render_history([entry("ended", None), entry("repaired", None, pod=None)])
    assert [line.split()[2:] for line in text.splitlines()] == [
        ["repaired", "node"],
        ["ended", "default/db"],
    ]
