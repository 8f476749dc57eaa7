"""What a kubelet's container finds when it is created: variables, and where it is told its CPUs."""

from __future__ import annotations

from collections.abc import Mapping

from pinfold.core.pod.workload import (
    ASSIGNMENT_FOLDER,
    ASSIGNMENT_HIDDEN,
    ASSIGNMENT_VARIABLE,
    FACTS,
    application_environment,
    assignment_mounts,
    environment_beside,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.books import Books
from pinfold.ports.nri import Container, ContainerAdjustment, Mount, Resources


async def adjustment(
    books: Books, pod: AdmittedPod, container: Container, given: Resources, cpus: CPUSet | None
) -> ContainerAdjustment:
    """What a container that is being created gets beside what it is ``given``.

    ``cpus`` are its own.  What cannot be is reported.
    """
    mounts = await _mounts(books, pod, container)
    env = _environment(books, pod, container, cpus, is_told=bool(mounts))
    return ContainerAdjustment(given, env, mounts=mounts)


async def _mounts(books: Books, pod: AdmittedPod, container: Container) -> tuple[Mount, ...]:
    """The folder in which it is told; nothing where its own mounts are in the way."""
    own = pod.container(container.name)
    folder = await books.announcements.tell(books.view, pod, own)
    if folder is None:
        return ()
    mounts = assignment_mounts(folder, container.mounted)
    if mounts is None:
        books.observers.report(pod.name, f"container {container.name}: {ASSIGNMENT_HIDDEN}")
    return tuple(Mount(*one) for one in mounts or ())


def _environment(
    books: Books, pod: AdmittedPod, container: Container, cpus: CPUSet | None, *, is_told: bool
) -> Mapping[str, str | None]:
    """What of its environment is Pinfold's; None for what it must not have."""
    shared = books.view.pool if container.name in pod.workload.pod.mixed else None
    told = application_environment(pod.name, pod.uid, container.name, cpus, shared)
    if is_told:
        told[ASSIGNMENT_VARIABLE] = ASSIGNMENT_FOLDER
    # What a kubelet's device plugins answer is among what the manifest sets, by now.
    env, passed_over = environment_beside(told, container.variables, {})
    if passed_over:
        books.observers.report(pod.name, f"container {container.name}: {passed_over}")
    return {**dict.fromkeys(sorted(FACTS & container.variables)), **env}
