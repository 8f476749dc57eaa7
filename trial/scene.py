"""What a fault has at hand: the agent, its crowd, chance, and a place for what must not be."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from trial.crowd import Crowd, manifest
from trial.node import NoAnswerError, Node, Refused
from trial.observed import Processes
from trial.patience import PATIENCE

GONE: Final = 20.0 * PATIENCE
"""Seconds in which the processes of a pod whose deletion was answered are gone."""


class SkippedFault(Exception):  # noqa: N818 - nothing went wrong
    """This machine has not what the fault takes; the message says what."""


@dataclass(slots=True)
class Scene:
    """What a fault has at hand; ``check`` notes what must not be."""

    node: Node
    crowd: Crowd
    rng: random.Random
    has_own_disk: bool
    findings: list[str] = field(default_factory=list)
    may_restart: set[str] = field(default_factory=set)
    """Pods whose containers the fault was allowed to end."""

    def check(self, ok: object, text: str) -> None:
        """Note a finding unless it is so."""
        if not ok:
            self.findings.append(text)

    def start(self, *flags: str) -> None:
        """Start the agent, which has to become ready."""
        problem = self.node.start(*flags)
        self.check(not problem, problem)

    @contextmanager
    def visitor(
        self, name: str, script: str, *, owns: int = 0, escapes: bool = False
    ) -> Iterator[None]:
        """A pod that is there for a while, and of which nothing is left."""
        pod = manifest(self.crowd.trial, name, script, owns=owns, escapes=escapes)
        self.node.ask("POST", "/v1/pods", pod)
        try:
            yield
        finally:
            try:
                self.node.ask("DELETE", f"/v1/pods/default/{name}?grace=0")
            except (Refused, NoAnswerError) as error:
                self.findings.append(f"{name} cannot be deleted: {error}")
            self.see_gone(name)

    def see_gone(self, name: str) -> None:
        """Nothing of a pod that was deleted runs."""
        deadline = time.monotonic() + GONE
        left = ["?"]
        while left and time.monotonic() < deadline:
            left = [
                one.name
                for one in Processes(self.crowd.trial).walk()
                if one.pod == name and not one.has_ended
            ]
            time.sleep(0.1)
        self.check(not left, f"outlive their pod: {', '.join(left[:5])}")
