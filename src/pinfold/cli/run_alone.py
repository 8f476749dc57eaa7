"""``pinfold run`` where no agent listens: pinned by affinity, and said so."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from pinfold.adapters.affinity import Affinity
from pinfold.adapters.machines.source import open_machine
from pinfold.adapters.roster import Entry, Roster
from pinfold.adapters.roster.file import start_of
from pinfold.admission.admission import Decision, Node, NodeState, decide, resume, settle
from pinfold.admission.model import NodeError
from pinfold.cli.client import RefusedError, runtime_folder
from pinfold.cli.foreground import Foreground
from pinfold.cli.output import input_errors
from pinfold.cli.run_manifest import CONTAINER, Wishes, near_locality
from pinfold.config.agent import DEFAULT_NODE
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.pod.api import PodError
from pinfold.core.pod.pod import Pod
from pinfold.core.pod.workload import application_environment
from pinfold.core.pod.workload_api import workload_from_api
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.planner import Planner
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey, PortError

ROSTER: Final = "alone.json"
FOLDER_VARIABLE: Final = "PINFOLD_RUN_DIR"


def run_alone(manifest: Mapping[str, Any], wishes: Wishes, socket: str) -> int:
    """Run a command on CPUs that no other ``pinfold run`` of this user has; return its status."""
    with input_errors(NodeError, PodError):
        planner = Planner(open_machine(None), DEFAULT_NODE, rules=SOUND)
        pod = workload_from_api(manifest).pod
    near = near_locality(wishes, planner.machine) if wishes.near else None
    # One list for all commands of a user, whichever socket they look for an agent on.
    folder = os.environ.get(FOLDER_VARIABLE) or runtime_folder()
    roster = Roster(Path(folder) / ROSTER, remedy=f"another folder is given with {FOLDER_VARIABLE}")
    foreground = Foreground(wishes.command, wishes.working_dir)
    try:
        wish = (None, False) if near is None else (near.cpus, wishes.near_required)
        cpus = _take(roster, planner, pod, foreground.pid, json.dumps(manifest), wish=wish)
    except PortError as error:
        foreground.give_up()
        raise RefusedError(0, str(error)) from None
    except click.ClickException:
        foreground.give_up()
        raise
    _say_what_is_weaker(socket, cpus)
    if near is not None and cpus is not None and not cpus <= near.cpus:
        click.echo(
            f"pinfold: CPUs {cpus - near.cpus} are not near {near.name}, whose CPUs are "
            f"{near.cpus}: not enough of them are free",
            err=True,
        )
    env = application_environment(f"{pod.namespace}/{pod.name}", pod.uid, CONTAINER, cpus)
    status = foreground.run({**env, **wishes.env})
    try:
        _give_back(roster, planner, pod.uid)
    except PortError as error:
        click.echo(f"pinfold: {error}", err=True)
    return status


def _take(  # noqa: PLR0913 - the pod, what it wishes, and where it is written down
    roster: Roster,
    planner: Planner,
    pod: Pod,
    pid: int,
    manifest: str,
    *,
    wish: tuple[CPUSet | None, bool],
) -> CPUSet | None:
    with roster.locked() as entries:
        state = _state(planner, entries)
        decision = decide_near(planner.node, state, pod, *wish)
        if not decision.admitted:
            near, required = wish
            only = f" (--near-required: of CPUs {near} only)" if required else ""
            raise RefusedError(0, f"{decision.reason}: {decision.message}{only}")
        state = settle(state, decision)
        cpus = _given(decision)
        text = None if cpus is None else str(cpus)
        entries[pod.uid] = Entry(pid, start_of(pid) or 0, text, manifest)
        asyncio.run(_pin(entries, state.ledger.default))
    return cpus


def decide_near(
    node: Node,
    state: NodeState,
    pod: Pod,
    near: CPUSet | None,
    required: bool,  # noqa: FBT001 - one half of a wish
) -> Decision:
    """Decide with the CPUs of ``near`` alone; unless ``required``, with all where that fails."""
    if near is not None:
        elsewhere = state.ledger.default - near
        decision = decide(node, replace(state, offline=state.offline | elsewhere), pod)
        if decision.admitted or required:
            return decision
    return decide(node, state, pod)


def _give_back(roster: Roster, planner: Planner, uid: str) -> None:
    with roster.locked() as entries:
        entries.pop(uid, None)
        asyncio.run(_pin(entries, _state(planner, entries).ledger.default))


def _given(decision: Decision) -> CPUSet | None:
    allocation = decision.allocations.get(CONTAINER)
    return None if allocation is None else allocation.cpus


def _state(planner: Planner, entries: Mapping[str, Entry]) -> NodeState:
    """What runs now, with the CPUs that this process may not use taken for offline."""
    usable = Affinity().usable()
    state = planner.empty_with(planner.view.topology.cpus - usable)
    for uid, entry in entries.items():
        pod = workload_from_api(json.loads(entry.manifest), admitted=True).pod
        if (cpus := entry.exclusive) is not None:
            ledger = state.ledger.with_pod(uid, {CONTAINER: cpus})
            state = NodeState(ledger, state.requested, state.pods, state.offline)
        state = resume(state, pod)
    return state


async def _pin(entries: Mapping[str, Entry], pool: CPUSet) -> None:
    """Everybody who shares moves first, then the owners are where they belong."""
    affinity = Affinity()
    usable = affinity.usable()
    await affinity.open(pool & usable)
    sharing_first = sorted(entries.items(), key=lambda item: item[1].cpus is not None)
    for uid, entry in sharing_first:
        if start_of(entry.pid) != entry.started:
            continue  # it has ended meanwhile
        key = ContainerKey(uid, CONTAINER)
        await affinity.place(key, Placement(cpus=entry.exclusive))
        await affinity.enter(key, entry.pid)


def _say_what_is_weaker(socket: str, cpus: CPUSet | None) -> None:
    if cpus is None:
        return
    click.echo(
        f"pinfold: no agent listens on {socket}: CPUs {cpus} are kept by affinity only. Other "
        "programs are not moved off them, and no limits are enforced.",
        err=True,
    )
