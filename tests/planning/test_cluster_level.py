"""What belongs to no node is no matter of whether a pod fits one; objects of DRA are told."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from pinfold.cli import main

CLASS = """
apiVersion: pinfold.dev/v1alpha1
kind: ResourceClass
metadata: {{name: address}}
spec:
  provisionConfig: {{resourceType: {level}}}
  labelSelector: [{{matchExpressions: [{{key: Kind, operator: In, values: [cluster-ip]}}]}}]
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 1, memory: 1Gi, address: 3}}
---
"""


def plan(text: str) -> dict[str, object]:
    machine = ["--machine", "1s4c2t", "--policy", "static", "--reserved-cpus", "0"]
    done = CliRunner().invoke(main, ["plan", *machine, "-o", "json", "-"], input=text)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (pod,) = found["pods"]
    return {"admitted": pod["admitted"], "notes": found["notes"]}


@pytest.mark.parametrize(("level", "admitted"), [("CLUSTERLEVEL", True), ("NODELEVEL", False)])
def test_a_pod_fits_whatever_it_wants_of_the_cluster(level: str, *, admitted: bool) -> None:
    found = plan(CLASS.format(level=level) + POD)
    assert found["admitted"] is admitted
    said = "class address is of the cluster level: planned without it"
    assert (said in str(found["notes"])) is admitted


def test_classes_of_dra_are_told_with_the_way_to_plan_with_them() -> None:
    dra = "".join(
        f"apiVersion: resource.k8s.io/v1\nkind: {kind}\nmetadata: {{name: a}}\n---\n"
        for kind in ("DeviceClass", "ResourceSlice")
    )
    notes = str(plan(CLASS.format(level="CLUSTERLEVEL") + POD + dra)["notes"])
    for kind in ("DeviceClass", "ResourceSlice"):
        assert f"{kind}: a plan knows classes (pinfold convert --to classes), left out" in notes
