"""Which of some pods is meant by a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pinfold.core.pod.owner import PodOwner, PodsName
from pinfold.core.pod.pod import Pod
from pinfold.core.values.errors import PinfoldError

_SHOWN: Final = 10


class UnknownPodError(PinfoldError, ValueError):
    """There is no pod of a name among those of the manifests, or more than one."""


def pod_named(name: str, pods: Iterable[Pod], hint: str = "") -> Pod:
    """The pod that is called ``NAME`` or ``NAMESPACE/NAME``.

    Args:
        name: what it is called.
        pods: those that there are.
        hint: what is said besides where there is none.

    Raises:
        UnknownPodError: there is none, or more than one.
    """
    known = list(pods)
    found = [one for one in known if name in {one.name, one.full_name}]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(one.full_name for one in found[:_SHOWN])
        raise UnknownPodError(f"there are several pods {name!r}; say which one: {names}")
    with_namespace = len({one.namespace for one in known}) > 1
    names = ", ".join(one.full_name if with_namespace else one.name for one in known[:_SHOWN])
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    raise UnknownPodError(
        f"no pod {name!r} in the manifests; there are {names or 'none'}{more}{hint}"
    )


def pods_named(
    name: PodsName, pods: Iterable[Pod], owners: Mapping[str, tuple[PodOwner, ...]]
) -> list[Pod]:
    """The pod that is meant, or all pods of the workload.

    Args:
        name: what is asked for.
        pods: those that there are.
        owners: of each pod, by uid, the workloads that it is of.

    Raises:
        UnknownPodError: there is none of this name, or more than one pod.
    """
    known = list(pods)
    if name.kind == "Pod":
        of = {one.word for each in owners.values() for one in each if one.name == name.name}
        hint = f"; did you mean {' or '.join(sorted(of))}?" if of else ""
        return [pod_named(name.full_name, known, hint)]
    found = [pod for pod in known if name.has(owners.get(pod.uid, ()))]
    if found:
        return found
    words = dict.fromkeys(one.word for pod in known for one in owners.get(pod.uid, ()))
    names = ", ".join([*words][:_SHOWN]) or "none"
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    raise UnknownPodError(f"no {name.text} in the manifests; workloads there: {names}{more}")
