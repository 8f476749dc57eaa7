"""What the mutating webhook of classes answers, by what is known of the cluster."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pinfold.cluster.classes.admission import ClassAdmission
from pinfold.cluster.classes.known import Known
from pinfold.core.classes.bound import bound_key
from pinfold.documents.admission_review import AdmissionRequest, AdmissionResponse, AnsweredReview
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, RESOURCE_CLASSES, Object
from pinfold.web.limited_connection import Limits
from tests.cluster.api_server.patches import patched
from tests.scenes.class_cluster import GPU, compute_resource, pod, resource_class
from tests.scenes.webhook_world import review, served


def request(created: Object, **fields: Any) -> AdmissionRequest:
    return msgspec.convert(review(created, **fields)["request"], AdmissionRequest)


def with_classes(
    scenario: Callable[[FakeKubernetes, Known, ClassAdmission], Awaitable[None]], *objects: Object
) -> None:
    """Run it in a cluster that has these, once they are known."""

    async def run() -> None:
        client = FakeKubernetes(FakeCluster())
        for one in objects:
            has_node = "resourceName" in one["spec"]
            await client.create(COMPUTE_RESOURCES if has_node else RESOURCE_CLASSES, one)
        known = Known(client)
        admission = ClassAdmission(known)
        with pytest.raises(PortError, match="not listed yet"):
            await admission.decide(request(pod("a", gold=1, bound=False)))
        assert admission.problems()
        following = asyncio.create_task(known.follow())
        await known.synced.wait()
        assert not admission.problems()
        await scenario(client, known, admission)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(run())


GOLD = resource_class("gold", "big")
ON_NODE = compute_resource("n1-big", "n1", "big", 2)


def test_a_pod_is_bound_by_a_patch_and_the_audit_says_to_what() -> None:
    async def scenario(_client: object, _known: Known, admission: ClassAdmission) -> None:
        asked = pod("a", gold=2, bound=False)
        answer = await admission.decide(request(asked, uid="one"))
        document = msgspec.to_builtins(AnsweredReview(response=answer))["response"]
        patch = document.pop("patch")
        assert document == {
            "uid": "one",
            "allowed": True,
            "patchType": "JSONPatch",
            "auditAnnotations": {"bound": f"app: gold={GPU}:2"},
        }
        steps = base64.b64decode(patch)
        assert {step["op"] for step in json.loads(steps)} == {"add"}
        found = patched(asked, "application/json-patch+json", steps)
        assert found["spec"]["containers"][0]["resources"]["limits"][GPU] == "2"
        assert found["metadata"]["annotations"] == {bound_key("app"): f"gold={GPU}:2"}
        again = await admission.decide(request(found))
        assert again.patch is msgspec.UNSET

    with_classes(scenario, GOLD, ON_NODE)


def refusal(answer: AdmissionResponse) -> tuple[int, str]:
    assert not answer.allowed
    assert isinstance(answer.status, msgspec.Struct)
    return answer.status.code, answer.status.message


def test_refusals_have_their_reason() -> None:
    async def scenario(_client: object, _known: Known, admission: ClassAdmission) -> None:
        code, message = refusal(await admission.decide(request(pod("a", glod=1, bound=False))))
        assert (code, "there is no class glod; there is gold" in message) == (403, True)
        broken = pod("a", gold=1, bound=False)
        broken["spec"]["containers"] = 5
        code, message = refusal(await admission.decide(request(broken)))
        assert (code, message) == (400, "spec.containers: must be a list")

    with_classes(scenario, GOLD, ON_NODE)


def test_what_is_no_creation_of_a_pod_is_let_by() -> None:
    async def scenario(_client: object, _known: Known, admission: ClassAdmission) -> None:
        asked = pod("a", glod=1, bound=False)
        services = {"group": "", "version": "v1", "resource": "services"}
        fields: tuple[dict[str, Any], ...] = (
            {"operation": "UPDATE"},
            {"subResource": "binding"},
            {"object": None},
            {"resource": services},
        )
        for one in fields:
            assert (await admission.decide(request(asked, **one))).allowed
        answer = await admission.decide(request(pod("a")))
        assert (answer.allowed, answer.patch) == (True, msgspec.UNSET)

    with_classes(scenario, GOLD, ON_NODE)


def test_classes_and_nodes_that_come_and_go_are_heeded() -> None:
    async def scenario(client: FakeKubernetes, known: Known, admission: ClassAdmission) -> None:
        changed = asyncio.Event()
        known.listeners.append(changed.set)

        async def seen(done: Awaitable[object]) -> AdmissionResponse:
            changed.clear()
            await done
            await changed.wait()
            return await admission.decide(request(pod("a", gold=1, bound=False)))

        asked = await admission.decide(request(pod("a", gold=1, bound=False)))
        assert "no node tells of devices of it" in refusal(asked)[1]
        assert (await seen(client.create(COMPUTE_RESOURCES, ON_NODE))).allowed
        other = compute_resource("n2-big", "n2", "big", 1, resource="x.y/gpu")
        answer = await seen(client.create(COMPUTE_RESOURCES, other))
        assert "several names here, nvidia.com/gpu, x.y/gpu" in refusal(answer)[1]
        assert (await seen(client.delete(COMPUTE_RESOURCES, "n2-big"))).allowed
        answer = await seen(client.delete(RESOURCE_CLASSES, "gold"))
        assert "there is no class gold; there are none" in refusal(answer)[1]

    with_classes(scenario, GOLD)


def test_who_has_to_wait_for_a_node_is_warned() -> None:
    named = resource_class("gold")
    named["spec"]["labelSelector"][0]["matchExpressions"] = [
        {"key": "resourceName", "operator": "In", "values": [GPU]}
    ]

    async def scenario(_client: object, _known: Known, admission: ClassAdmission) -> None:
        answer = await admission.decide(request(pod("a", gold=1, bound=False)))
        assert answer.warnings == [
            f"class gold: no node has {GPU} of it now; the pod waits for one"
        ]

    with_classes(scenario, named)


def test_while_the_only_plugin_is_restarted_pods_are_bound_as_before() -> None:
    async def scenario(client: FakeKubernetes, known: Known, admission: ClassAdmission) -> None:
        changed = asyncio.Event()
        known.listeners.append(changed.set)
        found = await client.get(RESOURCE_CLASSES, "gold")
        found = {**found, "status": {"resourceName": GPU}}
        for done in (
            client.update(RESOURCE_CLASSES, found, "status"),
            client.delete(COMPUTE_RESOURCES, "n1-big"),
        ):
            changed.clear()
            await done
            await changed.wait()
        answer = await admission.decide(request(pod("a", gold=1, bound=False)))
        assert (answer.allowed, bool(answer.patch)) == (True, True)
        assert "no node has" in str(answer.warnings)
        # One node that tells of another name alters nothing for the rest.
        for one in (ON_NODE, compute_resource("n2-big", "n2", "big", 1, resource="x.y/gpu")):
            changed.clear()
            await client.create(COMPUTE_RESOURCES, one)
            await changed.wait()
        answer = await admission.decide(request(pod("a", gold=1, bound=False)))
        assert answer.audit_annotations == {"bound": f"app: gold={GPU}:1"}

    with_classes(scenario, GOLD, ON_NODE)


def test_a_thousand_pods_at_a_time_are_bound_each(tmp_path: Path) -> None:
    bound: list[AdmissionResponse] = []

    async def scenario(_client: object, _known: Known, admission: ClassAdmission) -> None:
        async def decide(asked: AdmissionRequest) -> AdmissionResponse:
            bound.append(await admission.decide(asked))
            return bound[-1]

        limits = Limits(request=120.0, answer=120.0, idle=90, connections=2000)
        with served(tmp_path, decide, deadline=120.0, limits=limits) as world:
            answers = await asyncio.to_thread(
                world.ask_at_once, 1000, pod("a", gold=1, bound=False)
            )
        assert answers == [(200, True, str(number)) for number in range(1000)]
        assert len({one.patch for one in bound}) == 1
        assert bound[0].patch

    with_classes(scenario, GOLD, ON_NODE)


def test_a_review_as_an_api_server_sends_it_needs_no_name_and_no_uid() -> None:
    """Of a pod that is created by ``generateName`` nobody knows either yet."""
    asked = pod("a", gold=1, bound=False)
    asked["metadata"] = {
        "generateName": "a-",
        "namespace": "team",
        "creationTimestamp": None,
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
    }
    asked["status"] = {}

    async def scenario(_client: object, _known: Known, admission: ClassAdmission) -> None:
        answer = await admission.decide(request(asked, name=""))
        assert (answer.allowed, bool(answer.patch)) == (True, True)

    with_classes(scenario, GOLD, ON_NODE)
