"""``pinfold apply`` of what runs already, and the words of refusals: commands, never paths."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.roots import ROOT
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, container_id, phase, served

_NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "agent.sock", adopts=True) as server:
        yield server


def pinfold(api: Served, *args: str, given: Any = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pinfold", args[0], f"--socket={api.path}", *args[1:]],
        input=None if given is None else json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def apply(api: Served, *pods: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return pinfold(api, "apply", "-", given={"kind": "List", "items": list(pods)})


def web(cpus: str = "2", **spec: Any) -> dict[str, Any]:
    """As a user writes it: no uid."""
    pod = manifest("web", cpus, **spec)
    del pod["metadata"]["uid"]
    return pod


def uid(api: Served) -> str:
    return str(api.ask("GET", "/v1/pods/default/web").json["uid"])


def test_what_runs_already_is_unchanged(api: Served) -> None:
    first = apply(api, web())
    assert (first.returncode, first.stdout) == (0, "pod/web admitted: c0 2-3\n")
    before = uid(api)
    again = apply(api, web(restartPolicy="Always"))
    assert (again.returncode, again.stdout, again.stderr) == (0, "pod/web unchanged\n", "")
    assert uid(api) == before
    told = json.loads(pinfold(api, "apply", "-", "-o", "json", given=web()).stdout)
    assert [pod["unchanged"] for pod in told["pods"]] == [True]


def test_who_applies_at_the_same_time_is_told_the_same(api: Served) -> None:
    with ThreadPoolExecutor(8) as threads:
        same = [*threads.map(lambda _: apply(api, web()), range(4))]
        other = [*threads.map(lambda count: apply(api, web(count)), ["1", "1", "2", "3"])]
    assert sorted(one.stdout for one in same)[1:] == ["pod/web unchanged\n"] * 3
    assert {one.returncode for one in same} == {0}
    assert [one.returncode for one in other] == [1, 1, 0, 1]
    assert "pinfold resize pod/web" in other[0].stderr


def test_where_only_cpus_differ_a_resize_is_named_and_does_it(api: Served) -> None:
    apply(api, web())
    wait_until(lambda: phase(api, "web") == "Running")
    done = apply(api, web("3"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "pod/web: pod default/web runs already, and differs in" in done.stderr
    assert "spec.containers[0].resources.limits.cpu (2 -> 3)" in done.stderr
    command = "pinfold resize pod/web --container c0 --cpus 3"
    assert f"({command}, while it runs; or pinfold delete pod/web, then apply it" in done.stderr
    assert pinfold(api, *command.split()[1:]).returncode == 0
    assert apply(api, web("3")).stdout == "pod/web unchanged\n"
    assert apply(api, web("2")).returncode == 1


def test_of_another_pod_it_is_told_what_differs_and_what_to_do(api: Served) -> None:
    apply(api, web())
    done = apply(api, web(restartPolicy="Never"), manifest("other", "1"))
    assert done.returncode == 1
    assert done.stdout == "pod/other admitted: c0 1\n", "the others run"
    assert "spec.restartPolicy (not set -> Never)" in done.stderr
    assert "(pinfold delete pod/web, then apply it again)" in done.stderr
    assert "resize" not in done.stderr
    assert pinfold(api, "delete", "pod/web", "--grace", "0").returncode == 0
    assert apply(api, web(restartPolicy="Never")).returncode == 0


def test_a_pod_that_has_ended_is_run_anew(api: Served) -> None:
    assert apply(api, web(restartPolicy="Never")).returncode == 0
    wait_until(lambda: phase(api, "web") == "Running")
    key = next(one.id for one in api.node.runtime.known())
    api.do(lambda: api.node.runtime.exit(key, 0))
    wait_until(lambda: phase(api, "web") == "Succeeded")
    assert apply(api, web(restartPolicy="Never")).stdout == "pod/web admitted: c0 2-3\n"
    wait_until(lambda: phase(api, "web") == "Running")


def test_a_pod_that_was_rejected_is_decided_about_anew(api: Served) -> None:
    assert apply(api, web("20")).returncode == 1
    assert apply(api, web("20")).stdout.startswith("pod/web rejected: ")
    assert apply(api, web("2")).stdout.startswith("pod/web admitted")


def test_a_pod_of_its_own_uid_is_another_one(api: Served) -> None:
    apply(api, manifest("web", "2"))
    assert container_id(api, "web")
    other = manifest("web", "2")
    other["metadata"]["uid"] = "another"
    done = apply(api, other)
    assert done.returncode == 1
    assert "pod default/web is there already (uid uid-web)" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("delete", "pod/höhe"),
        ("delete", "quota/höhe"),
        ("delete", "pod/höhe", "pod/hühe"),
        ("logs", "pod/höhe"),
        ("explain", "pod/höhe"),
        ("resize", "pod/hohe", "--cpus", "2"),
        ("rebalance",),
    ],
)
def test_a_refusal_names_commands(api: Served, args: tuple[str, ...]) -> None:
    done = pinfold(api, *args)
    assert done.returncode == 1, done.stderr
    assert "Error: " in done.stderr
    if "pod/höhe" in args:
        assert "höhe" in done.stderr
    if args != ("rebalance",):
        assert "pinfold " in done.stderr
    for word in ("/v1/", "GET ", "POST ", "%C3"):
        assert word not in done.stderr


def test_what_was_applied_from_a_file_is_ended_by_it(api: Served, tmp_path: Path) -> None:
    pod = manifest("web", "1")
    pod["metadata"]["namespace"] = "team"
    file = tmp_path / "web.json"
    file.write_text(json.dumps({"kind": "List", "items": [_NAMESPACE, pod]}))
    assert "pod/web in team admitted" in pinfold(api, "apply", "-f", str(file)).stdout
    done = pinfold(api, "delete", "-f", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "pod/team/web deleted\n", "")
    again = pinfold(api, "delete", "-f", str(file))
    assert (again.returncode, again.stdout) == (1, "")
    assert "there is no pod team/web" in again.stderr


def test_a_namespace_is_that_of_manifests_that_say_none(api: Served) -> None:
    done = pinfold(api, "apply", "-", "-n", "team", given=web())
    assert "pod/web in team admitted" in done.stdout
    other = web()
    other["metadata"]["namespace"] = "other"
    done = pinfold(api, "apply", "-", "-n", "team", given=other)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pod/web is of namespace other, not of team (--namespace)" in done.stderr
    done = pinfold(api, "delete", "-f", "-", "-n", "team", given=web())
    assert done.stdout == "pod/team/web deleted\n"


def test_a_file_of_namespaces_names_no_pod_to_end(api: Served) -> None:
    done = pinfold(api, "delete", "-f", "-", given=_NAMESPACE)
    assert (done.returncode, done.stderr) == (2, "Error: -: there is no pod in it\n")
    assert (
        "--all ends all pods: leave out pod/web, or leave out --all"
        in pinfold(api, "delete", "--all", "pod/web").stderr
    )
