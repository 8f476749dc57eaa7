"""``-o html`` of the command line: one page, the same each time, whatever names say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from pinfold.cli import main
from pinfold.documents.live.scene import ScenePage
from tests.roots import ROOT
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import phase, served

PODS = str(ROOT / "examples" / "pods")
CONFIG = str(ROOT / "examples" / "kubelet.yaml")
PLAN = ("plan", "--machine", "2s8c2t", "--kubelet-config", CONFIG, PODS)
_DATA = re.compile(r'<script type="application/json" id="page">(.*?)</script>', re.DOTALL)


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "-o", "html"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("<!doctype html>")
    return result.stdout


def page_of(*arguments: str) -> ScenePage:
    found = _DATA.search(printed(*arguments))
    assert found is not None
    return msgspec.json.decode(found[1], type=ScenePage)


def test_a_plan_with_its_reasons() -> None:
    (scene,) = page_of(*PLAN).scenes
    assert scene.title == "2s8c2t"
    assert (scene.at, scene.live) == (None, False)
    why = {f"{pod.namespace}/{pod.name}": tuple(pod.why or ()) for pod in scene.pods}
    assert all(why.values())
    assert any("took" in line for line in why["trading/feed-handler"])
    assert any("What would admit it" in line for line in why["trading/matching-engine"])
    assert why["default/web-1"][0] == "told of default/web-0, which asks for the same:"


def test_why_of_a_pod_with_cpus_of_its_own_is_not_taken_for_that_of_another(
    tmp_path: Path,
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(json.dumps(manifest(name, "2")))
    (scene,) = page_of(*PLAN[:-1], str(tmp_path)).scenes
    first, second = scene.pods
    assert second.why
    assert (
        second.why[0]
        == f"told of default/{first.name}, which asks for the same and has other CPUs:"
    )


def test_it_is_the_same_each_time() -> None:
    assert printed(*PLAN) == printed(*PLAN)


def test_a_comparison() -> None:
    page = page_of(*PLAN, "--compare", str(ROOT / "examples" / "kubelet-new.yaml"))
    assert [scene.title for scene in page.scenes] == ["kubelet.yaml", "kubelet-new.yaml"]
    assert page.scenes[0].marked == page.scenes[1].marked == "16-19,26-29"
    assert page.changes is not None
    assert page.changes[0] == "2 pods changed, 6 unchanged"


def test_a_comparison_of_kubelets_says_what_the_newer_one_does() -> None:
    page = page_of(*PLAN, "--kubelet-version", "1.34", "--compare-kubelet-version", "1.36")
    assert list(page.details) == ["kubelet 1.36 after kubelet 1.34"]


def test_resizes_are_told() -> None:
    (scene,) = page_of(*PLAN, "--resize", "trading/risk-model=12").scenes
    assert scene.facts[0].name == "Resize"


def test_several_nodes() -> None:
    page = page_of("plan", "--node", "n1=1s4c2t", "--node", "n2=2s8c2t", PODS)
    assert page.scenes
    assert "Pods and their nodes" in page.details


def test_what_is_refused_is_refused_as_for_a_text(tmp_path: Path) -> None:
    for arguments in (("plan", "--machine", "nonsense", PODS), ("plan", str(tmp_path / "none"))):
        results = [CliRunner().invoke(main, [*arguments, "-o", form]) for form in ("text", "html")]
        assert results[0].exit_code == results[1].exit_code != 0
        assert results[0].stderr == results[1].stderr
        assert not results[1].stdout


def test_a_live_node_as_it_is_now(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api:
        api.ask("POST", "/v1/pods", manifest("db", "2"))
        wait_until(lambda: phase(api, "db") == "Running")
        (scene,) = page_of("status", "--socket", str(api.path)).scenes
    assert [(owner.label, owner.cpus) for owner in scene.owners] == [("default/db c0", "2-3")]
    assert scene.at is not None
    assert not scene.live


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<!--\u2028\u2029&"])
def test_no_name_leaves_its_place(name: str, tmp_path: Path) -> None:
    document: dict[str, Any] = json.loads(
        CliRunner().invoke(main, ["topology", "--machine", "1s4c2t", "-o", "json"]).stdout
    )
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps({**document, "name": name, "cpu_model": name}))
    text = printed("plan", "--machine", str(machine), PODS)
    plain = printed("plan", "--machine", "1s4c2t", PODS)
    assert text.count("</script>") == plain.count("</script>") == 2
    assert "alert(1)</script>" not in text
    assert not {"\u2028", "\u2029"} & set(text)


def test_thousands_of_pods_make_a_page_that_a_browser_can_open(tmp_path: Path) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    items = [{**pod, "metadata": {"name": f"p-{number}"}} for number in range(3000)]
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    text = printed("plan", "--machine", "2s8c2t", str(file))
    assert len(text) < 3_000_000
    assert "1,000 more pods are not listed here" in text
