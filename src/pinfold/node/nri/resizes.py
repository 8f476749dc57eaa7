"""A kubelet's resizes in place of containers that have CPUs of their own.

A runtime waits two seconds for the answer to UpdateContainer, and asks nothing else meanwhile.  So
a resize is decided about at once, and carried out by moves: what is done within half a second is in
the answer, what takes longer (an application is told before it loses CPUs, or other moves are under
way) follows by itself.  What is infeasible is refused, and changes nothing: a kubelet then shows
the text in its pod's condition PodResizeInProgress, and tries again, for ever.

A resize that nobody here was asked about (no agent answered, or the moves were undone) shows when
the runtime tells of the container: it asks for another number than it has.  That is tried, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from msgspec import Struct

from pinfold.core.moves.owners import Owner
from pinfold.core.moves.resize import (
    INCONSISTENT,
    NOT_ALLOCATED,
    ResizeDecision,
    keeps_its_part,
)
from pinfold.core.moves.steps import Wait
from pinfold.core.pod.cgroup_values import shares_to_milli_cpu
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.documents.history import Resized
from pinfold.node.draft import Draft
from pinfold.node.moves.infeasible import Infeasible
from pinfold.node.moves.mover import Mover
from pinfold.node.moves.moving import Ended, Moving
from pinfold.node.moves.resizing import Answered, begin, decide, resized_document
from pinfold.node.nri.lifecycle import ContainerLifecycle
from pinfold.node.nri.runtime_pod import RuntimePod
from pinfold.node.view import View
from pinfold.ports.errors import ContainerKey, PortError, StoreError
from pinfold.ports.nri import Container, ContainerState, PodSandbox, RefusedError
from pinfold.ports.podresources import PodDevices
from pinfold.ports.records import PendingMove

ANSWERED: Final = 0.5
"""Seconds for which an answer waits for the moves: the runtime asks nothing else meanwhile."""

AGAIN: Final = 10.0
"""Seconds between two tries of what could not be begun."""

Tell = Callable[[PodSandbox, Container, str], None]
"""Told of a resize that nobody waits for any more, and that cannot be made."""


def nobody(pod: PodSandbox, container: Container, text: str) -> None:
    """Tell nobody."""
    del pod, container, text


class _InVain(Struct, frozen=True):
    """How many CPUs were asked for, why they cannot be had, and of which state that was said."""

    cpus: int
    text: str
    view: View


class KubeletResizes:
    """Decides about resizes, and has them carried out.

    Args:
        containers: what is known of the containers.
        mover: carries out moves.
        tell: see :data:`Tell`.
    """

    def __init__(self, containers: ContainerLifecycle, mover: Mover, tell: Tell = nobody) -> None:
        self._containers = containers
        self._books = containers.books
        self._pods = containers.pods
        self._mover = mover
        self._tell = tell
        self._in_vain: dict[ContainerKey, _InVain] = {}
        self._infeasible = Infeasible(self._books)
        self._owed: dict[ContainerKey, None] = {}
        self._due = asyncio.Event()

    def is_one(self, runtime_pod: RuntimePod, container: Container) -> bool:
        """Whether a container is to have another number of CPUs than it asked for so far."""
        before = runtime_pod.containers[container.name]
        sandbox = runtime_pod.sandbox
        return self._pods.asked(sandbox, before) != self._pods.asked(sandbox, container)

    def refuse_again(self, pod: PodSandbox, container: Container) -> None:
        """Say what was said before, where nothing has changed since: that costs nothing.

        Raises:
            RefusedError: the very same was asked, and refused.
        """
        one = self._in_vain.get(ContainerKey(pod.uid, container.name))
        if (
            one is not None
            and one.cpus == self._pods.asked(pod, container)
            and _same(one.view, self._books.view)
        ):
            raise RefusedError(one.text)

    async def refuse_in_bubble(self, pod: PodSandbox, before: Container, after: Container) -> None:
        """Refuse what would change a container of a pod that has its resources as a whole.

        Raises:
            RefusedError: it would.
        """
        if after.resources == before.resources:
            return
        asked = Resized(
            container=after.name,
            cpus=shares_to_milli_cpu(after.resources.cpu_shares or 0) / 1000,
            before=(cpus := str(self._books.view.state.ledger.cpus_of(pod.uid, after.name) or "")),
            after=cpus,
            reason=INCONSISTENT,
            message=keeps_its_part(after.name),
        )
        async with self._books.change() as draft:
            runtime_pod = self._pods.by_uid[pod.uid]
            await self._note(draft, runtime_pod, Owner(pod.uid, after.name), asked)
        raise RefusedError(f"{asked.reason}: {asked.message}")

    async def resize(self, pod: PodSandbox, container: Container, devices: PodDevices) -> None:
        """Have a container get as many CPUs as it asks for; returns in time for an answer.

        Raises:
            RefusedError: it is infeasible, or cannot be written down; nothing was changed.
        """
        key = ContainerKey(pod.uid, container.name)
        runtime_pod = self._pods.by_uid[pod.uid]
        before = runtime_pod.containers.get(container.name)
        if before is None:
            raise RefusedError(f"{UNEXPECTED_ADMISSION_ERROR}: the container is over")
        # Nothing is written for as long as it is not answered, so it may be moved.
        self._containers.on_record.writes.over(key)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERED):
                while (move := self._in_the_way(Owner(key.pod_uid, key.name))) is not None:
                    await self._books.until_replanned(move)
        async with self._books.change() as draft:
            moving = await self._begin(draft, runtime_pod, container, devices)
        if moving is None:
            return
        is_told = any(isinstance(one, Wait) for one in moving.plan.steps)
        ended = await _within(moving, 0.0 if is_told else ANSWERED)
        if ended is None:
            self._books.spawn(self._see(moving, runtime_pod, container), name="a resize")
        elif ended.problem:
            runtime_pod.containers[container.name] = before
            raise RefusedError(f"{UNEXPECTED_ADMISSION_ERROR}: {ended.problem}")

    def look(self) -> None:
        """The runtime has shown what there is: go on with moves, and find what is missing.

        That is who asks for another number of CPUs than it has, and will have.
        """
        self._mover.go_on()
        for uid, runtime_pod in self._pods.by_uid.items():
            for name, container in runtime_pod.containers.items():
                if self._is_owed(runtime_pod, container):
                    self._owe(ContainerKey(uid, name))

    async def run(self) -> None:
        """Carry out what could not be begun at once, for ever."""
        while True:
            await self._due.wait()
            self._due.clear()
            while self._owed:
                for key in list(self._owed):
                    if (move := self._books.view.move) is not None:
                        await self._books.until_replanned(move)
                    await self._try(key)
                if self._books.view.move is None:
                    self._due.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(AGAIN):
                            await self._due.wait()

    # ------------------------------------------------------------------------------ carrying out

    def _in_the_way(self, owner: Owner) -> PendingMove | None:
        """The moves that have to be over before those of this owner can begin."""
        return None if self._mover.may_replace(owner) else self._books.view.move

    async def _begin(
        self, draft: Draft, runtime_pod: RuntimePod, container: Container, devices: PodDevices
    ) -> Moving | None:
        """Write a resize down; None where nothing moves, or not now."""
        await draft.look_at_cpus()
        sandbox, name = runtime_pod.sandbox, container.name
        key, owner = ContainerKey(sandbox.uid, name), Owner(sandbox.uid, name)
        if sandbox.uid not in self._books.view.pods.active:
            raise RefusedError(f"{UNEXPECTED_ADMISSION_ERROR}: the pod is over")
        asked = self._pods.asked(sandbox, container)
        replaces = self._mover.may_replace(owner)
        waits = self._in_the_way(owner) is not None
        view = self._books.view
        decision, plan = decide(draft, view, owner, asked, replaces=replaces, devices=devices)
        if plan is None:
            await self._refuse(draft, runtime_pod, asked, decision)
        self._in_vain.pop(key, None)
        memory = self._pods.decide(runtime_pod, container, devices, keeps=True)
        if not memory.admitted:
            await self._pods.refuse(draft, runtime_pod, memory)
        self._pods.take(draft, runtime_pod, container, memory)
        document = resized_document(Answered(runtime_pod.name, asked, decision))
        draft.note("resized", (sandbox.uid, runtime_pod.name), document)
        moving = None
        try:
            if waits or not (plan.steps or replaces):
                await draft.write()
            else:
                moving = await begin(draft, self._mover, plan, owner, asked)
        except StoreError as error:
            raise RefusedError(f"{UNEXPECTED_ADMISSION_ERROR}: {error}") from error
        runtime_pod.containers[container.name] = container
        if waits:
            self._owe(key)
        return moving

    async def _refuse(
        self, draft: Draft, runtime_pod: RuntimePod, asked: int, decision: ResizeDecision
    ) -> NoReturn:
        """Refuse what is infeasible; what was said a short time ago is not written down again.

        Raises:
            RefusedError: always.
        """
        owner, text = decision.owner, f"{decision.reason}: {decision.message}"
        active = self._books.view.pods.active
        self._in_vain = {one: it for one, it in self._in_vain.items() if one.pod_uid in active}
        document = resized_document(Answered(runtime_pod.name, asked, decision))
        await self._note(draft, runtime_pod, owner, document)
        self._in_vain[ContainerKey(*owner)] = _InVain(asked, text, self._books.view)
        raise RefusedError(text)

    async def _note(
        self, draft: Draft, runtime_pod: RuntimePod, owner: Owner, document: Resized
    ) -> None:
        """Write an infeasible resize down, unless that was done a short time ago."""
        report = self._books.observers.report
        if self._infeasible.note(draft, owner, runtime_pod.name, document):
            try:
                await draft.write()
            except PortError as error:
                report(runtime_pod.name, str(error))
            text = f"{document.reason}: {document.message}"
            report(runtime_pod.name, f"container {owner.container}: {text}")

    # ---------------------------------------------------------------------------- what is left

    def _owe(self, key: ContainerKey) -> None:
        self._owed[key] = None
        self._due.set()

    def _is_owed(self, runtime_pod: RuntimePod, container: Container) -> bool:
        has = self._books.view.in_the_end(runtime_pod.sandbox.uid, container.name)
        asked = self._pods.asked(runtime_pod.sandbox, container)
        return (
            container.state is not ContainerState.STOPPED
            and has is not None
            and asked > 0
            and len(has) != asked
        )

    async def _try(self, key: ContainerKey) -> None:
        """Begin what is owed to a container, if it can be had now."""
        runtime_pod = self._pods.by_uid.get(key.pod_uid)
        container = None if runtime_pod is None else runtime_pod.containers.get(key.name)
        if runtime_pod is None or container is None or not self._is_owed(runtime_pod, container):
            self._owed.pop(key, None)
            return
        known = key in self._in_vain
        try:
            self.refuse_again(runtime_pod.sandbox, container)
            devices = await self._containers.inquiries.devices_of(runtime_pod.sandbox, container)
            async with self._books.change() as draft:
                if self._books.view.move is not None:
                    return
                if runtime_pod.containers.get(key.name) is not container:
                    return
                moving = await self._begin(draft, runtime_pod, container, devices)
            if moving is not None:
                self._books.spawn(self._see(moving, runtime_pod, container), name="a resize")
            del self._owed[key]
        except RefusedError as error:
            if not known:
                self._tell(runtime_pod.sandbox, container, str(error))
        except Exception as error:  # noqa: BLE001 - nobody else carries out what is owed
            problem = f"its resize is tried again: {type(error).__name__}: {error}"
            self._books.observers.report(runtime_pod.name, f"container {container.name}: {problem}")

    async def _see(self, moving: Moving, runtime_pod: RuntimePod, container: Container) -> None:
        """Say so where moves were undone of which the kubelet was told that they would be made."""
        ended = await moving.ended()
        if ended.problem and self._is_owed(runtime_pod, container):
            text = f"{NOT_ALLOCATED}: {ended.problem}"
            self._books.observers.report(
                runtime_pod.name, f"container {container.name} keeps its CPUs: {text}"
            )
            self._tell(runtime_pod.sandbox, container, text)


def _same(one: View, other: View) -> bool:
    """Whether the same would be decided."""
    return one.state is other.state and one.move is other.move and one.node is other.node


async def _within(moving: Moving, seconds: float) -> Ended | None:
    """Wait for moves, not for long; None where they go on."""
    if seconds:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await moving.ended()
    return None
