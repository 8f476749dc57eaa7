"""Pods with pod-level resources, as the gate ``PodLevelResourceManagers`` serves them."""

from __future__ import annotations

from hypothesis import strategies as st

from pinfold.core.pod.pod import Container, Pod, PodResources, Resources
from pinfold.core.values.quantity import Quantity


def resources(cpu: str = "", memory: str = "", **more: str) -> Resources:
    """Requests or limits; a keyword ``hugepages_2Mi`` is the resource ``hugepages-2Mi``."""
    given = {"cpu": cpu, "memory": memory} | {k.replace("_", "-"): v for k, v in more.items()}
    return {name: Quantity.parse(text) for name, text in given.items() if text}


def container(name: str, cpu: str = "", memory: str = "", *, sidecar: bool = False) -> Container:
    """A container whose requests are its limits; without any it shares what its pod has."""
    asked = resources(cpu, memory)
    return Container(name, asked, asked, "Always" if sidecar else None)


def whole_pod(
    cpu: str,
    memory: str,
    *containers: Container,
    init: tuple[Container, ...] = (),
    uid: str = "u",
    **more: str,
) -> Pod:
    """A pod that asks for so much as a whole."""
    whole = PodResources(*(resources(cpu, memory, **more),) * 2)
    return Pod(uid, uid, init_containers=init, containers=containers, resources=whole)


@st.composite
def whole_pods(draw: st.DrawFn, uid: str = "u", most: int = 8) -> Pod:
    """Any pod that takes part; it may be unsound, or its containers ask for more than it has."""

    def one(name: str, *, sidecar: bool = False) -> Container:
        cpu = draw(st.sampled_from(["", "", "1", "1", "2", "3", "1500m"]))
        return container(name, cpu, "64Mi" if cpu else "", sidecar=sidecar)

    init = tuple(
        one(f"i{number}", sidecar=draw(st.booleans())) for number in range(draw(st.integers(0, 3)))
    )
    running = tuple(one(f"c{number}") for number in range(draw(st.integers(1, 3))))
    cpu = draw(st.integers(1, most).map(str) | st.just("2500m"))
    return whole_pod(cpu, "1Gi", *running, init=init, uid=uid)
