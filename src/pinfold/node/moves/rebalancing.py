"""Better places for those who run on a live node, and room for a pod that is rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import NodeState, decide
from pinfold.admission.moves import rebalance_document
from pinfold.admission.rebalance import gathered, make_room_for, rebalance, who_may_move
from pinfold.core.controllers.parking import Park
from pinfold.core.controllers.proposals import Proposal
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.moves.budget import MoveBudget
from pinfold.core.moves.objective import LEVELS, NUMA_NODES
from pinfold.core.moves.owners import MoveError, Owner, Refusal
from pinfold.core.moves.rebalance import Rebalance, RebalanceOptions
from pinfold.core.pod.pod import CPU, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MAKE_ROOM, PARKING, REBALANCE, MovePlan
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.moves.mover import Mover
from pinfold.node.moves.moving import BusyError, Moving
from pinfold.node.moves.room import MadeRoom
from pinfold.node.view import View
from pinfold.ports.runtime import ContainerState

_NOT_DYNAMIC: Final = (
    "nobody is moved while he runs, but under CPU manager policy dynamic",
    "set cpuManagerPolicy to dynamic, in a file with a section pinfold",
)


class Rebalancing:
    """Finds better places, and has the mover bring everybody there.

    Args:
        books: the node's.
        mover: carries the plans out.
        dynamic: what the policy ``dynamic`` may do; None: another policy, under which nobody moves.

    ``budget`` is what it may move unasked, with all others who do.
    """

    def __init__(self, books: Books, mover: Mover, dynamic: DynamicOptions | None = None) -> None:
        self._books = books
        self._mover = mover
        self._dynamic = dynamic
        self.rooms = MadeRoom(books)
        self.budget = MoveBudget(dynamic, books.observers.uptime)

    @property
    def mover(self) -> Mover:
        """Who carries its plans out, and those of others."""
        return self._mover

    # ------------------------------------------------------------------------- when it is asked for

    def would_move(self) -> MovePlan:
        """What :meth:`rebalance` would do now.

        Raises:
            BusyError: a plan is in flight.
            MoveError: nobody has CPUs of his own, or no CPU is free.
        """
        view = self._expect_idle()
        notes = () if self._dynamic else ("; ".join(_NOT_DYNAMIC),)
        return rebalance_document(self._plan(view), REBALANCE, view.pods.names, notes)

    async def rebalance(self, begun: Callable[[], None] = lambda: None) -> tuple[MovePlan, str]:
        """Bring everybody to the best place that can be had.

        Args:
            begun: called when somebody is about to move.

        Returns:
            The plan, once it is over, and why it was undone ("" where it was not).

        Raises:
            BusyError: a plan is in flight.
            MoveError: the policy is another one than ``dynamic``, or no CPU is free.
            StoreError: the plan cannot be written down.
        """
        if self._dynamic is None:
            raise MoveError(Refusal.UNKNOWN_OWNER, *_NOT_DYNAMIC)
        document, moving = await self._begin(begun)
        return document, "" if moving is None else (await moving.ended()).problem

    async def _begin(
        self,
        begun: Callable[[], None],
        most: int | None = None,
        levels: tuple[str, ...] = LEVELS,
    ) -> tuple[MovePlan, Moving | None]:
        """Plan, which takes some 50 ms with 200 containers on 512 CPUs, and begin."""
        async with self._books.change() as draft:
            await draft.look_at_cpus()
            view = self._expect_idle()
            found = self._plan(view, most, levels)
            document = rebalance_document(found, REBALANCE, view.pods.names)
            if not found.plan.steps:
                return document, None
            begun()
            return document, await self._mover.begin(draft, found.plan, why=REBALANCE)

    def _expect_idle(self) -> View:
        if self._mover.is_busy:
            raise BusyError("another plan of moves is under way")
        return self._books.view

    def _plan(
        self, view: View, most: int | None = None, levels: tuple[str, ...] = LEVELS
    ) -> Rebalance:
        options = replace(self._options(view), most_moved=most, levels=levels)
        return rebalance(view.node, view.state, options)

    def _options(self, view: View, pod_uid: str = "") -> RebalanceOptions:
        """Who may move now, and where: nobody of a pod that is being started or ended.

        Nobody goes to room that was made for others than this pod.
        """
        opt_in = self._dynamic is not None and self._dynamic.opt_in
        pods = [pod.workload.pod for pod in view.pods.active.values() if self._is_calm(pod)]
        grace = view.settings.scale_down_grace_period
        found = who_may_move(view.node, view.state, pods, grace=grace, opt_in=opt_in)
        avoid = view.move_options.avoid | self.rooms.of_others(pod_uid)
        return replace(found, moves=replace(view.move_options, avoid=avoid))

    def _is_calm(self, pod: AdmittedPod) -> bool:
        seen = self._books.containers.seen
        if pod.is_ending:
            return False
        for container in pod.workload.pod.containers:
            key = pod.key(container)
            status = seen.statuses.get(key)
            if key in seen.busy or status is None or status.state is ContainerState.CREATED:
                return False
        return True

    # ------------------------------------------------------------------------------- by itself

    async def by_itself(self, _wish: Proposal) -> str:
        """Begin moves for fewer NUMA nodes, within the budget.

        Returns:
            Why nobody moves; "" where somebody does.

        Raises:
            BusyError: a plan is in flight.
            MoveError: no CPU is free.
            StoreError: the plan cannot be written down.
        """
        if any(not self._is_calm(pod) for pod in self._books.view.pods.active.values()):
            return "somebody is being started or ended"
        most = self.budget.left
        _, moving = await self._begin(most=most, levels=(NUMA_NODES,), begun=lambda: None)
        if moving is None:
            return "nobody has a better place"
        self.budget.take(len(moving.plan.moved))
        return ""

    # ------------------------------------------------------------------------ on few packages

    async def park(self, wish: Proposal, *, keep_requests: bool) -> str:
        """Gather work on few packages, or let the shared pool be everywhere again.

        Owners move first, within the budget; once they are there, the pool leaves the others.

        Returns:
            Why nothing is changed; "" where something is.

        Raises:
            StoreError: the plan cannot be written down.
            CgroupError: the shared pool is not where it should be.
        """
        async with self._books.change() as draft:
            await draft.look_at_cpus()
            view = self._books.view
            if not isinstance(wish, Park):
                await draft.park(CPUSet())
                return ""
            if self._mover.is_busy:
                return "another plan of moves is under way"
            if any(not self._is_calm(pod) for pod in view.pods.active.values()):
                return "somebody is being started or ended"
            need = max(wish.need, _requested(view) if keep_requests else 0)
            options = replace(self._options(view), most_moved=self.budget.left)
            found = gathered(view.node, view.state, options, need)
            if found is not None and found.moves.plan.steps:
                moving = await self._mover.begin(draft, found.moves.plan, why=PARKING)
                self.budget.take(len(moving.plan.moved))
                return ""
            ledger = view.state.ledger
            idle = CPUSet() if found is None else ledger.default - found.kept
            if not ledger.exclusive <= (ledger.exclusive if found is None else found.kept):
                return "the budget of moves is used up"
            if idle == view.parked:
                return "nothing could be on fewer packages"
            await draft.park(idle)
        return ""

    # ------------------------------------------------------------------------ for who is rejected

    def is_under_way(self, moving: Moving) -> bool:
        """Whether it is this plan that is in flight."""
        return self._mover.in_flight is moving

    def before_room(self) -> Moving | None:
        """The plan in flight, which ends before room is made for anybody.

        None where there is none, or no room is made as it is configured.
        """
        is_made = self._dynamic is not None and self._dynamic.make_room
        return self._mover.in_flight if is_made else None

    async def make_room(
        self, draft: Draft, pod: Pod, admits: Callable[[NodeState], bool] | None = None
    ) -> Moving | None:
        """Begin the moves after which a pod is admitted that is rejected now; it is kept for it.

        None where that is not configured, or no moves lead there, or others are under way.  What it
        has already stays where it is.

        Args:
            draft: the change of the books in which it was rejected.
            pod: the pod.
            admits: see :func:`pinfold.admission.rebalance.make_room_for`.

        Raises:
            StoreError: the plan cannot be written down.
        """
        dynamic, view = self._dynamic, self._books.view
        if dynamic is None or not dynamic.make_room or self._mover.is_busy:
            return None
        if not (most := self.budget.left):
            return None
        options = self._options(view, pod.uid)
        own = (Owner(pod.uid, name) for name in draft.state.ledger.assignments.get(pod.uid, ()))
        fixed = {**options.fixed, **dict.fromkeys(own, "room is made for its pod")}
        options = replace(options, most_moved=most, fixed=fixed)

        def decided(state: NodeState) -> bool:
            return decide(draft.node, self.rooms.seen_by(state, pod.uid), pod).admitted

        try:
            found = make_room_for(draft.node, draft.state, pod, options, admits or decided)
        except MoveError:
            return None
        moving = await self._mover.begin(draft, found.plan, why=MAKE_ROOM)
        self.budget.take(len(moving.plan.moved))
        self.rooms.keep(pod.uid, found.room, moving)
        return moving


def _requested(view: View) -> int:
    """How many CPUs the containers of the shared pool request together."""
    milli = sum(
        quantity.milli_value()
        for pod, container in view.pods.containers().values()
        if view.where(pod, container).own is None
        and (quantity := container.requests.get(CPU)) is not None
    )
    return -(-milli // 1000)
