"""``pinfold plan`` of nodes of Kubernetes itself, with just the rights that the page names."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner, Result

from pinfold.adapters.kubernetes.published_node import NAMESPACE
from pinfold.cli import main
from pinfold.ports.kubernetes import PODS
from tests.roots import ROOT
from tests.scenes.control_plane import ControlPlane
from tests.scenes.live_cluster import published_map
from tests.scenes.waiting import wait_until

PAGE: Final = ROOT / "docs" / "how-to" / "plan-a-live-node.md"
WHO: Final = "who-plans"
USER: Final = f"system:serviceaccount:{WHO}:planner"
FEW, MANY = "planned-few", "planned-many"
COUNT: Final = 620
"""More than an API server is asked for at once."""
STATIC: Final = ("--policy", "static", "--reserved-cpus", "0")
RULE: Final = re.compile(r"the rule (\{.*?\}) (of a ClusterRole|in namespace ([^\s)]+))")

Object = dict[str, Any]


def documented() -> list[Object]:
    """The roles of the page; its bindings are for a group that nobody here is in."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [one for one in yaml.safe_load_all(block) if one["kind"] in {"Role", "ClusterRole"}]


def bound(role: Object) -> Object:
    """What gives a role to who asks."""
    kind, metadata = role["kind"], role["metadata"]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": dict(metadata),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": kind,
            "name": metadata["name"],
        },
        "subjects": [{"kind": "ServiceAccount", "name": "planner", "namespace": WHO}],
    }


def pod(name: str, node: str, cpus: str = "10m") -> Object:
    amounts = {"cpu": cpus, "memory": "16Mi"}
    resources = {"limits": amounts, "requests": amounts}
    env = [{"name": "SECRET", "value": "not-to-be-told"}]
    main = {"name": "main", "image": "img", "resources": resources, "env": env}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": WHO},
        "spec": {"nodeName": node, "containers": [main]},
    }


def node(name: str, cpus: int) -> Object:
    amounts = {"cpu": str(cpus), "memory": "64Gi", "pods": "1000"}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


class Planning:
    """Whoever has these rights, and what the server has written down of him."""

    def __init__(self, control: ControlPlane) -> None:
        self.control = control
        self.roles = documented()
        control.make_namespace(WHO)
        control.make_namespace(NAMESPACE)
        control.apply(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "planner", "namespace": WHO},
            }
        )
        self.grant()
        self.config = control.config_of_account(WHO, "planner")
        control.apply(node(FEW, 16), node(MANY, 512))
        asyncio.run(self._create())
        for name, status in {
            "late": {"phase": "Running", "startTime": "2026-03-01T09:00:00Z"},
            "early": {"phase": "Running", "startTime": "2026-03-01T08:00:00Z"},
            "gone": {"phase": "Failed", "startTime": "2026-03-01T07:00:00Z"},
        }.items():
            self._status(name, status)

    async def _create(self) -> None:
        client = self.control.client()
        named = [pod("late", FEW, "2"), pod("early", FEW, "2"), pod("gone", FEW, "2")]
        many = [pod(f"many-{number:03}", MANY) for number in range(COUNT)]
        turn = asyncio.Semaphore(8)

        async def create(one: Object) -> None:
            async with turn:
                await client.create(PODS, one)

        await asyncio.gather(*map(create, [*named, *many]))
        await client.close()

    def _status(self, name: str, status: Object) -> None:
        path = f"/api/v1/namespaces/{WHO}/pods/{name}/status"
        kind = "application/merge-patch+json"
        answer = self.control.ask("PATCH", path, {"status": status}, kind)
        assert answer[0] == 200, answer

    def grant(self, without: tuple[int, int] | None = None) -> None:
        """Have him have the rights of the page, or all but one rule: its role, and its place."""
        for number, role in enumerate(self.roles):
            rules = [rule for place, rule in enumerate(role["rules"]) if (number, place) != without]
            self.control.apply({**role, "rules": rules}, bound(role))

    def plan(self, *words: str, command: str = "plan") -> Result:
        return CliRunner().invoke(main, [command, "--kubeconfig", str(self.config), *words])

    def document(self, *words: str) -> Any:
        done = self.plan(*words, "-o", "json")
        assert done.exit_code == 0, done.output
        assert "not-to-be-told" not in done.output
        return json.loads(done.stdout)

    def written_down(self) -> list[Object]:
        return list(self.control.events(USER))

    def remove(self) -> None:
        for kind in ("clusterrolebinding", "clusterrole"):
            self.control.kubectl("delete", kind, "pinfold-plan", "--ignore-not-found")
        self.control.kubectl("delete", "node", FEW, MANY, "--ignore-not-found")
        now = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        pods = f"/api/v1/namespaces/{WHO}/pods"
        assert self.control.ask("DELETE", pods, now, "application/json")[0] == 200


@pytest.fixture(scope="module")
def planning(control: ControlPlane) -> Iterator[Planning]:
    found = Planning(control)
    wait_until(lambda: found.plan("--node", f"{FEW}=1s8c2t", *STATIC).exit_code == 0, 60)
    try:
        yield found
    finally:
        found.remove()


def names(document: Any) -> list[str]:
    return [one["name"] for one in document["pods"]]


def test_the_pods_of_a_node_in_the_order_of_their_kubelet(planning: Planning) -> None:
    document = planning.document("--node", f"{FEW}=1s8c2t", *STATIC)
    cpus = [(one["name"], one["containers"][0]["cpus"]) for one in document["pods"]]
    assert cpus == [("early", "2-3"), ("late", "4-5")]
    assert any("1 pod that ended left out" in note for note in document["notes"])


def test_more_pods_than_one_answer_has(planning: Planning) -> None:
    before = len(planning.written_down())
    done = planning.plan("--node", f"{MANY}=2s128c2t@1Ti", *STATIC, "--verbose", "-o", "json")
    assert done.exit_code == 0, done.output
    assert len(set(names(json.loads(done.stdout)))) == COUNT
    listed = [line.split()[1:3] for line in done.stderr.splitlines() if line.startswith("GET ")]
    wait_until(lambda: len(planning.written_down()) >= before + len(listed), 30)
    asked = planning.written_down()[before:]
    # What --verbose lists is what the server has seen, all of it, and nothing else.
    assert sorted([one["requestURI"], str(one["responseStatus"]["code"])] for one in asked) == (
        sorted(listed)
    )
    pages = [one for one in asked if one["requestURI"].startswith("/api/v1/pods?")]
    assert len(pages) == 2
    assert "continue=" in pages[1]["requestURI"]


def test_one_more_pod_under_another_configuration(planning: Planning, tmp_path: Path) -> None:
    new = pod("new", FEW, "4")
    file = tmp_path / "new.json"
    file.write_text(json.dumps(new))
    document = planning.document("--node", f"{FEW}=1s8c2t", *STATIC, str(file))
    assert names(document) == ["early", "late", "new"]
    assert any(f"new beside what runs there: {WHO}/new" in one for one in document["notes"])
    other = tmp_path / "other.yaml"
    other.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "cpuManagerPolicy: static\nreservedSystemCPUs: 0-3\n"
    )
    compared = planning.document("--node", f"{FEW}=1s8c2t", *STATIC, "--compare", str(other))
    assert {one["name"] for one in compared["changed"]} == {"early", "late"}


def test_what_an_agent_has_published(planning: Planning) -> None:
    uids = {
        one["metadata"]["name"]: one["metadata"]["uid"]
        for one in planning.control.get("pods", "-n", WHO, "early", "late")["items"]
    }
    has = {uids["early"]: {"main": "4-5"}, uids["late"]: {"main": "2-3"}}
    planning.control.apply(published_map(FEW, assignments=has))
    try:
        document = planning.document("--node", FEW)
        assert names(document) == ["early", "late"]
        assert any("2 of 2 containers have other CPUs there" in one for one in document["notes"])
        whole = planning.document("--from-cluster", "--node", "planned-f*")
        assert [one["name"] for one in whole["nodes"]] == [FEW]
    finally:
        planning.control.kubectl("delete", "configmap", FEW, "-n", NAMESPACE)


def calls(planning: Planning, rule: Object) -> Sequence[tuple[tuple[str, ...], str]]:
    """Commands that need a rule, each with the verb that is missing first without it."""
    one = ("--node", f"{FEW}=1s8c2t", *STATIC)
    (resource,) = rule["resources"]
    assert planning.roles
    return {
        "nodes": ((one, "get"), (("--from-cluster", "--machine", "1s8c2t", *STATIC), "list")),
        "pods": ((one, "list"),),
        "configmaps": ((("--node", FEW), "get"),),
        "noderesourcetopologies": ((("--node", FEW, "--node-resource-topology", *STATIC), "get"),),
    }[resource]


def rules() -> Iterator[tuple[int, int]]:
    for number, role in enumerate(documented()):
        yield from ((number, place) for place in range(len(role["rules"])))


@pytest.mark.parametrize("taken", list(rules()))
def test_the_rule_that_is_told_is_the_one_that_helps(
    planning: Planning, taken: tuple[int, int]
) -> None:
    number, place = taken
    role = planning.roles[number]
    rule = role["rules"][place]
    planning.grant(without=taken)
    try:
        for words, verb in calls(planning, rule):

            def refused(words: tuple[str, ...] = words) -> Result | None:
                done = planning.plan(*words)
                return done if RULE.search(done.output) else None

            done = wait_until(refused, 60)
            assert done is not None
            assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
            found = RULE.search(done.output)
            assert found is not None
            told = yaml.safe_load(found[1])
            assert told == {**rule, "verbs": [verb]}
            assert found[3] == role["metadata"].get("namespace")
    finally:
        planning.grant()

        def is_back() -> bool:
            return all(
                not RULE.search(planning.plan(*words).output) for words, _ in calls(planning, rule)
            )

        wait_until(is_back, 60)


def test_a_kubelet_is_asked_only_by_who_may(planning: Planning) -> None:
    denied = planning.plan("--node", f"{FEW}=1s8c2t", "--configz")
    assert denied.exit_code == 1
    assert "resources: [nodes/proxy]" in denied.output
    assert "as strong as exec in every container" in denied.output
    words = ["plan", "--kubeconfig", str(planning.control.config_of("admin"))]
    nobody = CliRunner().invoke(main, [*words, "--node", f"{FEW}=1s8c2t", "--configz"])
    assert (nobody.exit_code, nobody.output.count("\n")) == (1, 1), nobody.output
    assert isinstance(nobody.exception, SystemExit)


@pytest.mark.parametrize(
    ("token", "told"), [("nobody-knows-it", "is not known or has expired"), ("", "status 401")]
)
def test_a_token_that_is_none(planning: Planning, tmp_path: Path, token: str, told: str) -> None:
    text = planning.config.read_text()
    old = yaml.safe_load(text)["users"][0]["user"]["token"]
    file = tmp_path / "config"
    file.write_text(text.replace(old, token or f"{old}x"))
    done = CliRunner().invoke(main, ["plan", "--kubeconfig", str(file), "--node", FEW])
    assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
    assert told in done.output


def test_nothing_but_reading(planning: Planning) -> None:
    """After all tests of this file, the last of which this is."""
    verbs = [one["verb"] for one in planning.written_down()]
    assert set(verbs) == {"get", "list"}
    assert len(verbs) > 20
