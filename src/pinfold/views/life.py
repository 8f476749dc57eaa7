"""From the life of a node in a simulation to what the renderers draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pinfold.core.pod.pod import CPU
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.plan_document import kubelet_record, planned_config
from pinfold.planning.simulation.fleet.answer import BEYOND, Answer
from pinfold.planning.simulation.fleet.nodes import FleetNode
from pinfold.planning.simulation.observers.life import Between, Event, Life, Picture
from pinfold.planning.simulation.observers.worst import pod_name
from pinfold.render.machine_map import machine_map
from pinfold.render.node_map import Owner
from pinfold.render.simulation.life import LifeView, Moment, clock
from pinfold.views.node import kubelet_words, policies

_GROUPS: Final = dict(zip(BEYOND, ("NUMA nodes", "sockets", "caches", "cores"), strict=True))
_SYMBOLS: Final = 70
"""Of so many owners each has a symbol of its own."""
_NAMED: Final = 6
_WHY: Final = {"makeRoom": "to make room for another one", "rebalance": "for fewer NUMA nodes"}


def life_view(life: Life) -> LifeView:
    """The life of a node as pictures."""
    node, run = life.node, life.run
    config = node.model.config
    planned = planned_config(config)
    policy = policies(planned, planned.memory_manager_policy, planned.topology_manager_scope)
    kubelet = kubelet_words(kubelet_record(config))
    indexes = _indexes([picture.pods for picture in life.pictures])
    earlier = 0.0
    moments = []
    for picture, of in zip(life.pictures, indexes, strict=True):
        moments.append(_moment(node, picture, of, earlier))
        earlier = picture.at
    stopped = "" if run.complete else ", which was interrupted"
    return LifeView(
        name=node.name,
        title=f"{node.name} under {run.configuration}, seed {run.seed}{stopped}",
        subtitle=f"{node.model.kind.machine.name} · {kubelet} · {policy}",
        until=run.until,
        cpus=node.model.assignable.bit_count() or node.model.allocatable()[CPU] / 1000,
        measured="owned" if node.model.assignable else "requested",
        used=tuple(_used_up(life)),
        refusals=tuple(event.at for event in life.events if event.what == "refused"),
        moments=tuple(moments),
    )


def _used_up(life: Life) -> Iterator[tuple[float, float]]:
    """How many CPUs had an owner, or where none has any, how many were requested."""
    count = 0.0
    yield 0.0, count
    for event in life.events:
        answer = event.answer
        cpus = answer.claim.bit_count() or 0.0
        if not life.node.model.assignable:
            cpus = answer.shape.size.cpu_milli / 1000
        if event.what == "came":
            count += cpus
        elif event.what == "ended":
            count -= cpus
        yield event.at, count


def _indexes(pictures: Sequence[Mapping[int, Answer]]) -> list[dict[int, int]]:
    """The symbol of each pod that owns CPUs, in each picture: the same as long as it is there.

    Who comes gets one that was not in the picture before, as far as there are others.
    """
    found: list[dict[int, int]] = []
    seen: dict[int, int] = {}  # index -> the last picture with it
    for number, pods in enumerate(pictures):
        owners = [pod for pod, answer in pods.items() if answer.claim]
        before = found[-1] if found else {}
        here = {pod: before[pod] for pod in owners if pod in before}
        taken = set(here.values())
        unused = [at for at in range(_SYMBOLS) if at not in taken]
        unused.sort(key=lambda at: (seen.get(at, -1), at))
        more = iter([*unused, *range(_SYMBOLS, _SYMBOLS + len(owners))])
        here |= {pod: next(more) for pod in owners if pod not in here}
        seen |= dict.fromkeys(here.values(), number)
        found.append(here)
    return found


def _moment(
    node: FleetNode, picture: Picture, indexes: Mapping[int, int], earlier: float
) -> Moment:
    owners = [
        Owner(str(pod), pod_name(pod), _used(answer), indexes[pod])
        for pod, answer in picture.pods.items()
        if answer.claim
    ]
    owners.sort(key=lambda owner: owner.index)
    owned = idle = 0
    for answer in picture.pods.values():
        owned |= answer.claim
        idle |= answer.idle or 0
    model = node.model
    policy = model.node.cpu_policy
    reserved = model.config.reserved_system_cpus if policy is None else policy.reserved
    free = model.assignable & ~owned
    return Moment(
        at=picture.at,
        title="; ".join(picture.why) or "as asked for",
        since=_since(picture, earlier),
        facts=tuple(_facts(picture, model.assignable.bit_count(), free.bit_count())),
        node_map=machine_map(
            model.kind.machine,
            owners,
            unseen=model.planner.view.unseen,
            shared=CPUSet.from_mask(model.empty.ledger.default.mask & ~owned),
            reserved=reserved,
            idle=CPUSet.from_mask(idle),
        ),
    )


def _used(answer: Answer) -> CPUSet:
    return CPUSet.from_mask(answer.claim & ~(answer.idle or 0))


def _since(picture: Picture, earlier: float) -> str:
    """``in 2 d 03:00:00: 14 pods came and got 32 CPUs, 12 ended``."""
    passed = picture.at - earlier
    span = f"in {clock(passed)}" if passed >= 1 else "at the same time"
    return f"{span}: {', '.join(_happened(picture.before)) or 'nothing'}"


def _happened(before: Between) -> Iterator[str]:
    if before.came:
        pods = f"{before.came} pod{'s' * (before.came != 1)} came"
        cpus = before.came_cpus
        yield pods + (f" and got {cpus} CPU{'s' * (cpus != 1)}" if cpus else "")
    if before.ended:
        yield f"{before.ended} ended"
    for reason, count in before.refused.items():
        yield f"{count} refused: {reason}"
    if before.moved:
        yield f"{before.moved} moved"


def _facts(picture: Picture, cpus: int, free: int) -> Iterator[str]:
    last = picture.before.last
    if last is not None and last.at == picture.at:
        yield _told(last)
    owners = sum(bool(answer.claim) for answer in picture.pods.values())
    sharing = len(picture.pods) - owners
    if cpus:
        text = f"{cpus - free} of {cpus} CPUs owned by {owners} pod{'s' * (owners != 1)}"
        yield text + (f"; {sharing} share the others" if sharing else "")
    else:
        yield f"{sharing} pod{'s' * (sharing != 1)} share all CPUs"
    for spread, levels in _spread(picture).items():
        *first, last_level = levels
        groups = f"{', '.join(first)} and {last_level}" if first else last_level
        named = ", ".join(map(pod_name, spread[:_NAMED]))
        more = f" and {len(spread) - _NAMED} more" if len(spread) > _NAMED else ""
        yield f"on more {groups} than so many CPUs need: {named}{more}"


def _spread(picture: Picture) -> dict[tuple[int, ...], list[str]]:
    """Who is on more groups than it needs, and of which kinds."""
    found: dict[tuple[int, ...], list[str]] = {}
    for place, groups in enumerate(_GROUPS.values()):
        pods = tuple(pod for pod, answer in picture.pods.items() if answer.beyond[place])
        if pods:
            found.setdefault(pods, []).append(groups)
    return found


def _told(event: Event) -> str:
    answer, name = event.answer, pod_name(event.pod)
    cpus = str(CPUSet.from_mask(answer.claim))
    match event.what:
        case "refused":
            return f"{name} asks for {_asked(answer)} and is refused: {answer.reason}"
        case "came":
            return f"{name} comes and " + (f"gets CPUs {cpus}" if cpus else "shares")
        case "ended":
            return f"{name} ends" + (f", and its CPUs {cpus} are free" if cpus else "")
        case "moved":
            return f"{name} moves to CPUs {cpus}, {_WHY[event.why or 'rebalance']}"


def _asked(answer: Answer) -> str:
    size = answer.shape.size
    milli = size.cpu_milli
    cpu = f"{milli // 1000} CPU{'s' * (milli != 1000)}" if milli % 1000 == 0 else f"{milli}m cpu"
    extended = [f"{count} {name}" for name, count in size.extended]
    return " and ".join([cpu, *extended])
