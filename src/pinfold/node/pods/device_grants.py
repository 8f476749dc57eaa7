"""What device plugins are asked in the course of an admission, and before a container starts.

A decision is pure: where it depends on what a plugin says, the plugin is asked first, without
holding anything up, and the decision is made anew with the answer.  Only when every plugin has
agreed is the pod written down, so a plugin that refuses leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.decision import Decision
from pinfold.admission.pod_draft import DEVICE_MANAGER
from pinfold.core.devices.devices import (
    DeviceMount,
    DeviceNode,
    DeviceResource,
    DeviceRunOptions,
    PreferenceQuestion,
)
from pinfold.core.devices.policy import PreferenceNeededError
from pinfold.core.pod.pod import Pod
from pinfold.core.topology_manager.hints import AllocationError
from pinfold.core.topology_manager.manager import admission_failure
from pinfold.node.counters import Counters
from pinfold.ports.devices import DevicePluginError, DevicePlugins
from pinfold.ports.records import DeviceGrant, DeviceGrants

RETURN_PATIENCE: Final = 15.0
"""Seconds in which plugins should register with an agent that was started anew.

Only then is it known whether they want to prepare the devices of a container that starts again.
"""

_RETURN_PAUSE: Final = 0.1
_NO_PLUGINS: Final = "no device plugin has registered"


class AllocateQuestion(NamedTuple):
    """What a plugin is asked once the devices of a container are chosen."""

    container: str
    resource: str
    device_ids: tuple[str, ...]


Question: TypeAlias = PreferenceQuestion | AllocateQuestion


class PluginAnswers:
    """The questions and answers of one admission.

    ``preferred`` holds what plugins would rather give, or the text of their failure.
    """

    def __init__(
        self,
        plugins: DevicePlugins | None,
        counters: Counters | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._plugins = plugins
        self._counters = counters or Counters()
        self._clock = clock
        self.preferred: dict[PreferenceQuestion, tuple[str, ...] | str] = {}
        self._responses: dict[AllocateQuestion, bytes | str] = {}

    async def ask(self, question: Question) -> None:
        """Ask a plugin; whatever comes of it is an answer."""
        try:
            if self._plugins is None:
                raise DevicePluginError(_NO_PLUGINS)  # noqa: TRY301 - the same end as a failure
            if isinstance(question, PreferenceQuestion):
                found = await self._plugins.preferred_allocation(question)
                self.preferred[question] = tuple(found)
            else:
                self._responses[question] = await self._allocate(self._plugins, question)
        except DevicePluginError as error:
            if isinstance(question, PreferenceQuestion):
                self.preferred[question] = str(error)
            else:
                self._responses[question] = str(error)

    async def _allocate(self, plugins: DevicePlugins, question: AllocateQuestion) -> bytes:
        began = self._clock()
        try:
            return await plugins.allocate(question.resource, question.device_ids)
        finally:
            self._counters.count_allocate(question.resource, self._clock() - began)

    def decide(self, node: Node, state: NodeState, pod: Pod) -> tuple[Decision, Question | None]:
        """Decide about a pod with the answers so far.

        Returns:
            The decision, and what has to be asked before it may hold; None when nothing has.
        """
        try:
            decision = decide(node, state, pod, self.preferred)
        except PreferenceNeededError as needed:
            return Decision(pod, admitted=False), needed.question
        if not decision.admitted:
            return decision, None
        for question in _questions(decision):
            answer = self._responses.get(question)
            if answer is None:
                return decision, question
            if isinstance(answer, str):
                refused = decision.refused(*admission_failure(AllocationError(answer)))
                failed = replace(refused, failed_container=question.container)
                return replace(failed, failed_provider=DEVICE_MANAGER), None
        return decision, None

    def grants(self, decision: Decision) -> dict[str, DeviceGrants]:
        """What the pod is given, by container, with the plugins' answers."""
        given: dict[str, dict[str, DeviceGrant]] = {}
        for question in _questions(decision):
            answer = self._responses.get(question, b"")
            response = b"" if isinstance(answer, str) else answer
            grant = DeviceGrant(question.device_ids, response)
            given.setdefault(question.container, {})[question.resource] = grant
        return dict(given)


def _questions(decision: Decision) -> Iterable[AllocateQuestion]:
    for container, resources in decision.devices.items():
        for resource, ids in resources.items():
            yield AllocateQuestion(container, resource, tuple(ids))


async def prepare_devices(plugins: DevicePlugins | None, grants: DeviceGrants) -> DeviceRunOptions:
    """What a container is started with; its plugins have prepared the devices.

    Raises:
        DevicePluginError: a plugin has not, or is not there, or its answer cannot be read.
    """
    if not grants:
        return DeviceRunOptions()
    if plugins is None:
        raise DevicePluginError(_NO_PLUGINS)
    for resource, grant in sorted(grants.items()):
        if (await _known(plugins, resource)).pre_start_required:
            await plugins.pre_start(resource, grant.ids)
    return merged(plugins.options(grant.response) for _, grant in sorted(grants.items()))


async def _known(plugins: DevicePlugins, resource: str) -> DeviceResource:
    """A resource as its plugin lists it; one that an agent was started without is waited for."""
    for _ in range(round(RETURN_PATIENCE / _RETURN_PAUSE)):
        if (known := plugins.inventory().get(resource)) is not None:
            return known
        await asyncio.sleep(_RETURN_PAUSE)
    raise DevicePluginError(f"{resource}: its device plugin is not there", "start the plugin")


def unseen_by_a_process(options: DeviceRunOptions) -> str:
    """What of the answers of device plugins is not there for a plain process; "" for nothing.

    It sees the files of the host where they are, as far as its user may.
    """
    files = [(mount.container_path, mount.host_path) for mount in options.mounts]
    files += [(node.container_path, node.host_path) for node in options.devices]
    moved = [f"{wanted} is at {there}" for wanted, there in files if wanted != there]
    missing = [
        *(["annotations"] if options.annotations else []),
        *(f"CDI device {name}" for name in options.cdi_devices),
    ]
    parts = [
        f"a plain process sees the files of the host: {', '.join(moved)}" if moved else "",
        f"only a container runtime applies {', '.join(missing)}" if missing else "",
    ]
    return "; ".join(part for part in parts if part)


def merged(options: Iterable[DeviceRunOptions]) -> DeviceRunOptions:
    """One set of options of several; of two for the same name or path, the first holds.

    Source: upstream ``deviceRunContainerOptions``.
    """
    envs: dict[str, str] = {}
    mounts: dict[str, DeviceMount] = {}
    devices: dict[str, DeviceNode] = {}
    annotations: dict[str, str] = {}
    cdi_devices: dict[str, None] = {}
    for one in options:
        _keep_first(envs, one.envs)
        _keep_first(annotations, one.annotations)
        for mount in one.mounts:
            mounts.setdefault(mount.container_path, mount)
        for device in one.devices:
            devices.setdefault(device.container_path, device)
        cdi_devices |= dict.fromkeys(one.cdi_devices)
    return DeviceRunOptions(
        envs, tuple(mounts.values()), tuple(devices.values()), annotations, tuple(cdi_devices)
    )


def _keep_first(known: dict[str, str], more: Mapping[str, str]) -> None:
    for name, value in more.items():
        known.setdefault(name, value)
