"""Pods, quotas and the objects of others: what becomes of them, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from pinfold.core.dra.convert import Converted, to_classes, to_dra
from pinfold.core.dra.objects import ConvertError, located
from pinfold.formats.yaml_writing import written_yaml

CLASS = """
apiVersion: pinfold.dev/v1alpha1
kind: ResourceClass
metadata: {name: gold, labels: {team: a}, annotations: {why: dear}, uid: 1-2}
spec: {labelSelector: [{matchExpressions: [{key: model, operator: In, values: [x]}]}]}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  initContainers:
  - {name: first, resources: {limits: {gold: 1}}}
  containers:
  - name: app
    resources: {requests: {cpu: 1, class.pinfold.dev/gold: 2}, limits: {class.pinfold.dev/gold: 2}}
  - {name: app-2, resources: {limits: {gold: 1, class.pinfold.dev/tin: 1, class.pinfold.dev/no: 0}}}
  - {name: none}
  resourceClaims: [{name: classes, resourceClaimName: mine}]
"""
DEVICE_CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gold}
spec:
  extendedResourceName: example.com/gold
  selectors: [{cel: {expression: 'device.attributes["gpu.io"].model == "x"'}}]
"""
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: two, namespace: shop}
spec: {spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gold, count: 2}},
  {name: b, exactly: {deviceClassName: gold}}]}}}
"""
CLAIMING = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    spec:
      containers:
      - {name: app, resources: {claims: [{name: c}]}}
      - name: other
        resources: {limits: {example.com/gold: 1, deviceclass.resource.kubernetes.io/x: 1}}
      resourceClaims: [{name: c, resourceClaimTemplateName: two}]
"""
SLICE = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {generateName: a}
spec:
  driver: gpu.io
  pool: {name: node-1, generation: 2, resourceSliceCount: 1}
  nodeName: node-1
  devices:
  - {name: gpu-0, attributes: {model: {string: x}, numa: {int: 1}, fast: {bool: true},
      driverVersion: {version: 1.2.3}, example.com/a: {string: b}},
      capacity: {memory: {value: 16Gi}}}
  - {name: gpu-1, attributes: {model: {string: y}}, taints: [{key: a, effect: NoSchedule}]}
  - {name: gpu-2, attributes: {model: {string: y}}}
"""


def objects(*texts: str) -> list[Any]:
    return [
        one
        for at, document in enumerate(yaml.safe_load_all("\n---\n".join(texts)))
        for one in located(f"f: document {at}", document)
    ]


def of_kind(converted: Converted, kind: str) -> list[Mapping[str, Any]]:
    return [one for one in converted.objects if one["kind"] == kind]


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_a_pod_claims_what_it_asked_for() -> None:
    converted = to_dra(objects(CLASS, POD))
    (template,) = of_kind(converted, "ResourceClaimTemplate")
    assert template["metadata"] == {"name": "web-classes", "namespace": "shop"}
    requests = template["spec"]["spec"]["devices"]["requests"]
    assert requests == [
        {"name": "first", "exactly": {"deviceClassName": "gold", "count": 1}},
        {"name": "app", "exactly": {"deviceClassName": "gold", "count": 2}},
        {"name": "app-2", "exactly": {"deviceClassName": "gold", "count": 1}},
        {"name": "app-2-2", "exactly": {"deviceClassName": "tin", "count": 1}},
    ]
    (pod,) = of_kind(converted, "Pod")
    assert [one.get("resources") for one in pod["spec"]["containers"]] == [
        {"requests": {"cpu": 1}, "claims": [{"name": "classes-2", "request": "app"}]},
        {
            "claims": [
                {"name": "classes-2", "request": "app-2"},
                {"name": "classes-2", "request": "app-2-2"},
            ]
        },
        None,
    ]
    assert pod["spec"]["resourceClaims"] == [
        {"name": "classes", "resourceClaimName": "mine"},
        {"name": "classes-2", "resourceClaimTemplateName": "web-classes"},
    ]
    assert [note.rpartition("'web': ")[2].partition(";")[0] for note in converted.lost] == [
        "spec.initContainers[0]: its devices stay with the pod to its end",
        "class tin is not among these: a DeviceClass of its name has to be there",
    ]


def test_labels_and_annotations_stay_and_what_a_server_says_goes() -> None:
    (made,) = to_dra(objects(CLASS)).objects
    assert made["metadata"]["labels"] == {"team": "a"}
    assert made["metadata"]["annotations"]["why"] == "dear"
    assert "uid" not in made["metadata"]
    (back,) = to_classes(objects(written_yaml([made]))).objects
    assert back["metadata"] == {
        "name": "gold",
        "labels": {"team": "a"},
        "annotations": {"why": "dear"},
    }


def test_quotas_count_claims_and_classes() -> None:
    quota = """
kind: ResourceQuota
metadata: {name: q}
spec: {hard: {gold: 4, requests.class.pinfold.dev/tin: "2", pods: 3}}
"""
    there = to_dra(objects(CLASS, quota))
    assert len(there.lost) == 1
    assert "class tin is not among these" in there.lost[0]
    (claims,) = of_kind(there, "ResourceQuota")
    assert claims["spec"]["hard"] == {
        "gold.deviceclass.resource.k8s.io/devices": 4,
        "tin.deviceclass.resource.k8s.io/devices": "2",
        "pods": 3,
    }
    back = to_classes(objects(written_yaml(there.objects)))
    assert of_kind(back, "ResourceQuota")[0]["spec"]["hard"] == {
        "requests.class.pinfold.dev/gold": 4,
        "requests.class.pinfold.dev/tin": "2",
        "pods": 3,
    }


def test_claims_of_a_template_are_asked_for_by_class() -> None:
    converted = to_classes(objects(DEVICE_CLASS, TEMPLATE, CLAIMING))
    (workload,) = of_kind(converted, "Deployment")
    spec = workload["spec"]["template"]["spec"]
    assert "resourceClaims" not in spec
    assert [one["resources"] for one in spec["containers"]] == [
        {"limits": {"class.pinfold.dev/gold": 3}},
        {
            "limits": {
                "class.pinfold.dev/gold": 1,
                "deviceclass.resource.kubernetes.io/x": 1,
            }
        },
    ]
    assert of_kind(converted, "ResourceClaimTemplate") == []
    assert "pods ask for it by example.com/gold" in converted.lost[0]


def test_the_older_forms_are_read() -> None:
    template = changed(TEMPLATE, "resource.k8s.io/v1", "resource.k8s.io/v1beta1")
    template = changed(
        template, "exactly: {deviceClassName: gold, count: 2}", "deviceClassName: gold, count: 2"
    )
    device_class = changed(DEVICE_CLASS, "resource.k8s.io/v1", "resource.k8s.io/v1beta2")
    converted = to_classes(objects(device_class, template, CLAIMING))
    spec = of_kind(converted, "Deployment")[0]["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"] == {"limits": {"class.pinfold.dev/gold": 3}}
    old = """
apiVersion: resource.k8s.io/v1beta1
kind: ResourceSliceList
items:
- spec: {driver: gpu.io, allNodes: true, pool: {name: p, generation: 0, resourceSliceCount: 1},
    devices: [{name: d, basic: {attributes: {m: {string: x}}}}]}
"""
    (found,) = to_classes(objects(old)).objects
    assert found["spec"]["properties"] == {"gpu.io/m": "x", "driver": "gpu.io"}
    assert found["spec"]["devices"] == ["d"]


def test_the_devices_of_others_are_told_apart_by_their_attributes() -> None:
    converted = to_classes(objects(SLICE, DEVICE_CLASS), "gpu.io")
    first, second = of_kind(converted, "ComputeResource")
    assert first["spec"] == {
        "nodeName": "node-1",
        "resourceName": "gpu.io/device",
        "properties": {
            "driverVersion": "1.2.3",
            "example.com/a": "b",
            "fast": "true",
            "memory": "16Gi",
            "model": "x",
            "numa": "1",
        },
        "devices": ["gpu-0"],
    }
    assert second["spec"]["devices"] == ["gpu-1", "gpu-2"]
    assert first["metadata"]["name"].startswith("node-1-gpu.io-device-")
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert [note.rpartition("name: ")[2] for note in converted.lost[:2]] == [
        "taints of its devices: left out",
        "it is gpu.io/device",
    ]
    (one,) = of_kind(converted, "ResourceClass")
    assert one["spec"]["labelSelector"] == [
        {"matchExpressions": [{"key": "model", "operator": "In", "values": ["x"]}]}
    ]


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    older = changed(SLICE, "generation: 2", "generation: 1")
    assert len(to_classes(objects(older, SLICE)).objects) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            changed(SLICE, "resourceSliceCount: 1", "resourceSliceCount: 2"),
            "has 2 slices, and 1 are",
        ),
        (
            changed(SLICE, "nodeName: node-1", "nodeSelector: {a: b}"),
            "spec.nodeSelector: no Compute",
        ),
        (changed(SLICE, "nodeName: node-1", "x: 0"), "spec.nodeName: Required value: or allNodes"),
        (changed(SLICE, "taints", "consumesCounters"), "spec.devices[1].consumesCounters"),
        (
            changed(
                SLICE, "taints: [{key: a, effect: NoSchedule}]", "allowMultipleAllocations: true"
            ),
            "spec.devices[1].allowMultipleAllocations",
        ),
        (changed(SLICE, "{int: 1}", "{ints: [1]}"), "exactly one of string, version, int, bool"),
        (changed(SLICE, "{int: 1}", "{int: 1, bool: true}"), "exactly one of string"),
        (changed(SLICE, "model: {string: x}", "memory: {string: x}"), "a property has one value"),
        (changed(SLICE, "value: 16Gi", "value: lots"), "spec.devices[0].capacity[memory].value"),
        (changed(SLICE, "resource.k8s.io/v1", "resource.k8s.io/v1alpha3"), "version v1alpha3"),
        (changed(DEVICE_CLASS, " == ", " > "), "spec.selectors[0].cel.expression: 'device"),
        (changed(DEVICE_CLASS, "name: gold", f"name: {'a' * 64}"), "metadata.name: Invalid value"),
        (DEVICE_CLASS + "\n---\n" + DEVICE_CLASS, "'gold' is there already"),
        (changed(CLAIMING, "TemplateName: two", "Name: two"), "pods may share this claim"),
        (CLAIMING, "there is no ResourceClaimTemplate two among these"),
        (
            TEMPLATE + "\n---\n" + changed(CLAIMING, "claims: [{name: c}]", "claims: []"),
            "request a;",
        ),
        (TEMPLATE + "\n---\n" + changed(CLAIMING, "{name: c}]}", "{name: d}]}"), "no claim d in"),
        (
            TEMPLATE + "\n---\n" + changed(CLAIMING, "limits: {", "claims: [{name: c}], limits: {"),
            "by class devices are not shared",
        ),
        (
            changed(TEMPLATE, "count: 2", "allocationMode: All") + "\n---\n" + CLAIMING,
            "'two': spec.spec.devices.requests[0].exactly.allocationMode: a container asks for a",
        ),
        (
            changed(TEMPLATE, "exactly: {deviceClassName: gold, count: 2}", "firstAvailable: [{}]")
            + "\n---\n"
            + CLAIMING,
            "firstAvailable: a container asks for one class",
        ),
        (
            changed(TEMPLATE, "count: 2", "selectors: [{}]") + "\n---\n" + CLAIMING,
            "exactly.selectors: a container that asks by class cannot say it",
        ),
    ],
)
def test_what_no_class_stands_for_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConvertError) as caught:
        to_classes(objects(text))
    assert problem in str(caught.value)
    assert str(caught.value).startswith("f: document ")


def long_class(name: str, priority: int, values: int) -> str:
    held = [f"{at:0250}" for at in range(values)]
    spec = {
        "labelSelector": [{"matchExpressions": [{"key": "k", "operator": "In", "values": held}]}]
    }
    return yaml.safe_dump(
        {
            "apiVersion": "pinfold.dev/v1alpha1",
            "kind": "ResourceClass",
            "metadata": {"name": name},
            "spec": {**spec, "priority": priority},
        }
    )


RESOURCE = """
apiVersion: pinfold.dev/v1alpha1
kind: ComputeResource
metadata: {name: r}
spec: {resourceName: a.b/c, devices: [d], properties: {model: x}}
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (long_class("a", 0, 50), "what a selects is "),
        (
            "\n---\n".join(long_class(f"c{at}", at, 35) for at in range(34)),
            "33 classes have a higher",
        ),
        (
            CLASS + "\n---\n" + changed(RESOURCE, "model: x", f"model: {'x' * 65}"),
            "[model]: Too long",
        ),
        (
            changed(RESOURCE, "model: x", ", ".join(f"p{at}: x" for at in range(31))),
            "Too many: 33, of which 0 are quantities",
        ),
        (CLASS + "\n---\n" + changed(POD, "{gold: 1}", "{gold: 0.5}"), "must be a whole number"),
        (
            CLASS
            + "\n---\n"
            + changed(POD, "class.pinfold.dev/gold: 2}, limits", "a: 1}, limits")
            + "\n---\n"
            + POD,
            "there would be two ResourceClaimTemplates shop/web-classes",
        ),
        (
            CLASS
            + "\n---\n"
            + changed(POD, "cpu: 1, class.pinfold.dev/gold: 2", "class.pinfold.dev/gold: 1"),
            "must be equal to the request",
        ),
        (CLASS + "\n---\n" + changed(POD, "{gold: 1}", "{gold: 30}"), "for 34 devices in all"),
        (
            CLASS
            + "\n---\n"
            + changed(POD, "namespace: shop", "annotations: {binding.pinfold.dev/a: b}"),
            "a pod that has been bound",
        ),
        (CLASS + "\n---\n" + CLASS, "ResourceClass 'gold' is there already"),
        (
            changed(CLASS, "operator: In", "operator: Is"),
            "matchExpressions[0].operator: Unsupported",
        ),
    ],
)
def test_what_claims_cannot_say_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConvertError) as caught:
        to_dra(objects(text))
    assert problem in str(caught.value)
    assert str(caught.value).startswith("f: document ")


def test_what_is_no_device_or_not_counted_is_left_out_and_told() -> None:
    cpu = changed(RESOURCE, "a.b/c", "cpu")
    uncounted = changed(changed(RESOURCE, "devices: [d], ", ""), "name: r", "name: s")
    long = changed(changed(RESOURCE, "model: x", f"info: {'x' * 65}"), "name: r", "name: t")
    converted = to_dra(objects(cpu, uncounted, long))
    assert [one["metadata"]["name"] for one in converted.objects] == ["t"]
    assert [note.rpartition("': ")[2].partition(",")[0] for note in converted.lost] == [
        "left out: cpu is counted by kubelets",
        "left out: DRA lists each device",
        "properties info are left out: more than 64 bytes each",
    ]
    (back,) = to_classes(objects(written_yaml([converted.objects[0]]))).objects
    assert back["spec"]["properties"] == {"info": "x" * 65}


def test_many_classes_of_higher_priority_share_selectors() -> None:
    classes = [changed(CLASS, "{name: gold,", f"{{name: c{at},") for at in range(40)]
    text = [
        changed(one, "{labelSelector", f"{{priority: {at}, labelSelector")
        for at, one in enumerate(classes)
    ]
    there = to_dra(objects(*text))
    assert len(there.objects[0]["spec"]["selectors"]) <= 32
    back = to_classes(objects(written_yaml(there.objects)))
    assert back.lost == ()
    assert [one["spec"].get("priority", 0) for one in back.objects] == list(range(40))


def test_priorities_that_would_mean_something_else_are_told_or_refused() -> None:
    high = changed(changed(CLASS, "name: gold", "name: high"), "{labelS", "{priority: 1, labelS")
    low, upper = to_dra(objects(CLASS, high)).objects
    alone = to_classes(objects(written_yaml([low])))
    assert "it left devices to class high, which is not among these" in alone.lost[0]
    other = written_yaml([upper]).replace('model == "x"', 'model == "y"')
    with pytest.raises(ConvertError, match="is not what class high selects"):
        to_classes(objects(written_yaml([low]), other))
    plain = to_classes(objects(DEVICE_CLASS, written_yaml([upper])))
    assert "class high has a higher priority (1), and will take devices" in plain.lost[1]
    broken = written_yaml([low]).replace("!(", "(")
    with pytest.raises(ConvertError, match="is to exclude what other classes select"):
        to_classes(objects(broken))


def test_what_a_class_does_not_say_any_more_is_told() -> None:
    ours = changed(CLASS, "operator: In, values: [x]", "operator: NotIn, values: [x]")
    both = written_yaml(to_dra(objects(ours, RESOURCE)).objects)
    assert to_classes(objects(both)).lost == ()
    told = to_classes(objects(both, SLICE)).lost
    assert any("class gold had nothing of it, and may: it selected" in one for one in told)
    by_driver = 'device.driver == "gpu.io"'
    every = changed(DEVICE_CLASS, 'device.attributes["gpu.io"].model == "x"', by_driver)
    named = changed(SLICE, "model: {string: x}", "driver: {string: nv}")
    told = to_classes(objects(every, named), "gpu.io").lost
    assert any("it selects CPUs and memory, too" in one for one in told)
    assert any("class gold will not take it for one of driver gpu.io" in one for one in told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            changed(SLICE, "{value: 16Gi}", "{value: 16Gi, requestPolicy: {default: 1Gi}}"),
            "capacity.requestPolicy, taints of its devices: left out",
        ),
        (changed(DEVICE_CLASS, "spec:", "spec:\n  other: 5"), "spec.other is left out"),
        (
            "\n---\n".join(
                (
                    DEVICE_CLASS,
                    changed(TEMPLATE, "spec: {", "spec: {metadata: {labels: {a: b}}, "),
                    CLAIMING,
                )
            ),
            "spec.metadata is left out",
        ),
    ],
)
def test_fields_that_no_class_has_are_told(text: str, told: str) -> None:
    assert any(told in one for one in to_classes(objects(text)).lost)


@pytest.mark.parametrize("kind", ["ResourceClaim", "DeviceTaintRule"])
def test_other_objects_of_dra_are_left_out_and_told(kind: str) -> None:
    text = f"apiVersion: resource.k8s.io/v1\nkind: {kind}\nmetadata: {{name: a}}\n"
    converted = to_classes(objects(text, TEMPLATE, "kind: Namespace\n"))
    assert [one["kind"] for one in converted.objects] == ["Namespace"]
    assert len(converted.lost) == 2


def test_levels_exclude_nothing_from_each_other_and_what_mixes_them_is_told() -> None:
    level = "{priority: 1, provisionConfig: {resourceType: CLUSTERLEVEL}, labelSelector"
    cluster = changed(changed(CLASS, "name: gold", "name: all"), "{labelSelector", level)
    resource = changed(RESOURCE, "{resourceName", "{nodeName: n, resourceName")
    converted = to_dra(objects(CLASS, cluster, resource))
    assert [len(one["spec"]["selectors"]) for one in of_kind(converted, "DeviceClass")] == [2, 2]
    (note,) = converted.lost
    assert "class all (CLUSTERLEVEL) had nothing of it, and will" in note
    back = to_classes(objects(written_yaml(converted.objects)))
    assert back.lost == ()
    everywhere = to_dra(objects(cluster, RESOURCE))
    assert everywhere.lost == ()
    assert of_kind(everywhere, "ResourceSlice")[0]["spec"]["allNodes"] is True


def test_slices_and_templates_have_names_of_their_own() -> None:
    many = changed(
        changed(RESOURCE, "devices: [d], ", "").rstrip() + '\nstatus: {capacity: "200"}\n',
        "name: r}",
        "name: many}",
    )
    slices = of_kind(to_dra(objects(many)), "ResourceSlice")
    assert [one["metadata"]["name"] for one in slices] == ["many", "many-1"]
    assert [len(one["spec"]["devices"]) for one in slices] == [128, 72]
    with pytest.raises(ConvertError, match="there would be two ResourceSlices many-1"):
        to_dra(objects(many, changed(RESOURCE, "name: r}", "name: many-1}")))
    there = changed(TEMPLATE, "name: two", "name: web-classes")
    with pytest.raises(ConvertError, match="two ResourceClaimTemplates shop/web-classes"):
        to_dra(objects(CLASS, there, POD))
