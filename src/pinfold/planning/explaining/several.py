"""Why several pods were decided as they were: those alike, such as replicas, explained once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from pinfold.admission.decision import Decision
from pinfold.core.pod.annotations import named
from pinfold.core.pod.pod import Pod
from pinfold.documents import explanation as form
from pinfold.planning.explaining.decision import Explanation, explain_last
from pinfold.planning.explaining.document import explain_document
from pinfold.planning.planner import Planner
from pinfold.planning.quotas import Made


class Alike(Struct, frozen=True):
    """Pods about which was decided alike; the first of them is the one explained."""

    pods: tuple[Pod, ...]
    explanation: Explanation


class Several(Struct, frozen=True):
    """Explanations of some of the pods of a plan, and how many of all were admitted."""

    admitted: int
    rejected: int
    found: tuple[Alike, ...]


def explain_several(
    planner: Planner,
    pods: Iterable[Pod],
    is_asked: Callable[[Decision], bool],
) -> Several:
    """Place all pods, and explain the decisions that are asked for, in the order of admission.

    A pod is explained once with those that ask for the same and were answered the same.
    """
    made = list(planner.decisions(pods))
    admitted = sum(one.decision.admitted for one in made)
    groups = _alike(made, is_asked)
    found = tuple(
        Alike(
            tuple(made[at].decision.pod for at in group),
            explain_last(planner, made[: group[0] + 1]),
        )
        for group in groups
    )
    return Several(admitted, len(made) - admitted, found)


def _alike(made: Sequence[Made], is_asked: Callable[[Decision], bool]) -> Iterator[list[int]]:
    """Yield the places of the decisions that are alike, by the first of each."""
    known: dict[object, list[tuple[Any, list[int]]]] = {}
    every: list[list[int]] = []
    for at, one in enumerate(made):
        if not is_asked(one.decision):
            continue
        there = known.setdefault(_answer(one.decision), [])
        request = _request(one.decision.pod)
        group = next((places for asked, places in there if asked == request), None)
        if group is None:
            group = []
            there.append((request, group))
            every.append(group)
        group.append(at)
    yield from every


def _answer(decision: Decision) -> object:
    """What was answered, without which CPUs these are."""
    given = ((name, len(one.cpus)) for name, one in decision.allocations.items())
    return (
        decision.pod.namespace,
        decision.reason,
        decision.message,
        decision.notes,
        tuple(given),
    )


def _request(pod: Pod) -> object:
    """What a pod asks for, whatever it is called."""
    wishes = {name: one for name, one in pod.annotations.items() if name in named(pod.annotations)}
    return (
        pod.init_containers,
        pod.containers,
        pod.overhead,
        pod.resources,
        pod.passed_over,
        pod.priority,
        pod.static,
        wishes,
    )


def explanations_document(
    planner: Planner, several: Several, notes: Sequence[str] = ()
) -> form.Explanations:
    """The document of several explanations: what ``pinfold explain MANIFEST... -o json`` prints."""
    return form.Explanations(
        admitted=several.admitted,
        rejected=several.rejected,
        explanations=[
            form.AlikeExplained(
                pods=[pod.full_name for pod in one.pods],
                explanation=explain_document(planner, one.explanation),
            )
            for one in several.found
        ],
        notes=notes,
    )
