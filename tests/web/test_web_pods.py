"""The local API: pods come, are shown, explained, and go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from pinfold.cli import main
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.settings import NodeSettings
from pinfold.ports.errors import ContainerKey, StoreError
from pinfold.ports.records import Batch
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import PATIENCE, wait_until
from tests.scenes.web_world import Served, container, container_id, phase, served


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "agent.sock", adopts=True) as server:
        yield server


def test_an_empty_node_has_a_status(api: Served) -> None:
    status = api.ask("GET", "/v1/status").json
    assert status["pods"] == []
    assert (status["shared"], status["pool"]) == ("0-7", "1-7")
    assert (status["reserved"], status["allocatable"], status["offline"]) == ("0", "1-7", "")
    assert status["agent"] == {
        "version": "0",
        "node": "",
        "pid": os.getpid(),
        "started_at": 0.0,
        "state_dir": "/nowhere",
        "config_file": None,
        "runtime": "process",
        "problems": [],
        "cgroups": {},
    }
    assert status["counters"]["admissions"] == 0


def test_policy_none_has_reserved_cpus_and_nothing_to_give(tmp_path: Path) -> None:
    config = NodeConfig(reserved_system_cpus=CPUSet([0, 1]))
    with served(tmp_path / "s", config=config) as api:
        api.ask("POST", "/v1/pods", manifest("web", "2"))
        status = api.ask("GET", "/v1/status").json
        assert (status["reserved"], status["allocatable"]) == ("0-1", "")
        assert status["pods"][0]["containers"][0]["cpus"] == "2-7"
        assert "allocation_per_numa" not in api.ask("GET", "/metrics").text


def test_a_pod_with_exclusive_cpus(api: Served) -> None:
    answer = api.ask("POST", "/v1/pods", manifest("db", "2"))
    assert answer.status == 201
    assert api.backend.applied == [("api", None)]
    wait_until(lambda: phase(api, "db") == "Running")
    pod = api.ask("GET", "/v1/pods/default/db").json
    assert pod["qos"] == "Guaranteed"
    assert pod["source"] == "api"
    assert pod["containers"] == [
        {
            "name": "c0",
            "kind": "container",
            "cpus": "2-3",
            "exclusive": True,
            "offline": "",
            "place": "own",
            "numa_nodes": [],
            "memory": [],
            "devices": {},
            "state": "RUNNING",
            "pid": 1001,
            "restarts": 0,
            "exit_code": None,
            "ran_shared_seconds": None,
        }
    ]
    status = api.ask("GET", "/v1/status").json
    assert (status["shared"], status["pool"]) == ("0-1,4-7", "1,4-7")
    assert status["pods"] == [{k: v for k, v in pod.items() if k != "version"}]
    assert api.ask("GET", "/v1/pods").json["pods"] == status["pods"]


def test_a_shared_container_runs_on_the_pool(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("web", ""))
    api.ask("POST", "/v1/pods", manifest("db", "2"))
    containers = api.ask("GET", "/v1/pods/default/web").json["containers"]
    assert (containers[0]["cpus"], containers[0]["exclusive"]) == ("1,4-7", False)


def test_a_rejected_pod_is_answered_with_its_reason(api: Served) -> None:
    answer = api.ask("POST", "/v1/pods", manifest("big", "20"))
    assert answer.status == 200
    pod = answer.json
    assert (pod["phase"], pod["reason"]) == ("Rejected", "UnexpectedAdmissionError")
    assert "not enough cpus" in pod["message"]
    assert pod["containers"][0]["state"] == "Waiting"
    assert pod["containers"][0]["cpus"] == ""
    assert pod.pop("warnings") == []
    assert api.ask("GET", "/v1/pods/default/big").json == pod


def test_pods_stand_in_the_order_of_admission(api: Served) -> None:
    for name, cpus in (("a", "1"), ("too-big", "20"), ("b", ""), ("ends", "1"), ("c", "")):
        api.ask("POST", "/v1/pods", manifest(name, cpus, restartPolicy="Never"))
    wait_until(lambda: phase(api, "ends") == "Running")
    api.do(lambda: api.node.runtime.exit(container_id(api, "ends"), 0))
    wait_until(lambda: phase(api, "ends") == "Succeeded")
    pods = api.ask("GET", "/v1/status").json["pods"]
    assert [pod["name"] for pod in pods] == ["a", "too-big", "b", "ends", "c"]
    ended = pods[3]["containers"][0]
    assert (ended["state"], ended["exit_code"], ended["cpus"]) == ("EXITED", 0, "")


def test_the_containers_of_a_pod_have_kinds_and_states(tmp_path: Path) -> None:
    pod = manifest("app", "2", init=["4", "1"])
    pod["spec"]["initContainers"][1]["restartPolicy"] = "Always"
    with served(tmp_path / "s") as api:
        api.ask("POST", "/v1/pods", pod)
        first, side, main = api.ask("GET", "/v1/pods/default/app").json["containers"]
        assert [c["kind"] for c in (first, side, main)] == ["init", "sidecar", "container"]
        assert (first["state"], first["exclusive"]) == ("RUNNING", True)
        assert (main["state"], main["pid"]) == ("Waiting", None)
        api.do(lambda: api.node.runtime.exit(container_id(api, "app", "i0"), 0))
        wait_until(lambda: phase(api, "app") == "Running")
        first, side, main = api.ask("GET", "/v1/pods/default/app").json["containers"]
        assert (first["state"], first["exit_code"]) == ("EXITED", 0)
        assert (first["cpus"], first["exclusive"]) == ("", False), "it has given them back"
        assert side["exclusive"] is main["exclusive"] is True
        api.do(lambda: api.node.runtime.exit(container_id(api, "app"), 3))
        wait_until(
            lambda: api.ask("GET", "/v1/pods/default/app").json["containers"][2]["restarts"] == 1
        )


def test_a_container_between_two_attempts_waits(tmp_path: Path) -> None:
    with served(tmp_path / "s", settings=NodeSettings(backoff=60.0)) as api:
        api.ask("POST", "/v1/pods", manifest("loop", "1"))
        first = wait_until(lambda: running(api, "loop"))
        api.do(lambda: api.node.runtime.exit(first, 3))
        second = wait_until(lambda: found if (found := running(api, "loop")) != first else "")
        api.do(lambda: api.node.runtime.exit(second, 4))
        wait_until(lambda: container(api, "loop")["state"] == "Waiting")
        waiting = container(api, "loop")
        assert (waiting["exit_code"], waiting["cpus"], waiting["pid"]) == (4, "1", None)


def running(api: Served, pod: str) -> str:
    """The id of the pod's container once it runs, "" until then."""
    status = api.do(lambda: api.backend.books.statuses.get(ContainerKey(f"uid-{pod}", "c0")))
    return status.id if status is not None and status.state is ContainerState.RUNNING else ""


def test_a_name_is_taken_only_once(api: Served) -> None:
    assert api.ask("POST", "/v1/pods", manifest("web", "")).status == 201
    same = api.ask("POST", "/v1/pods", manifest("web", ""))
    assert (same.status, same.json["unchanged"]) == (200, True)
    answer = api.ask("POST", "/v1/pods", manifest("web", "2"))
    assert answer.status == 409
    assert "default/web" in answer.error["message"]
    assert answer.error["code"] == "AlreadyExists"


def test_a_deleted_pod_is_gone_when_the_answer_comes(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("db", "2"))
    wait_until(lambda: phase(api, "db") == "Running")
    assert api.ask("DELETE", "/v1/pods/default/db").status == 204
    assert api.node.runtime.known() == ()
    status = api.ask("GET", "/v1/status").json
    assert (status["pods"], status["shared"]) == ([], "0-7")
    assert api.ask("GET", "/v1/pods/default/db").status == 404
    assert api.ask("DELETE", "/v1/pods/default/db").status == 404


def test_a_name_that_the_api_server_would_refuse_is_refused(api: Served) -> None:
    """It was admitted once: its path is another pod's or none, and its cgroup cannot be made."""
    for pod, place in (
        (manifest("a/b", ""), "metadata.name"),
        (manifest("../../x y", "1"), "metadata.name"),
        ({**manifest("a", "1"), "metadata": {"name": "a", "uid": "u" * 201}}, "metadata.uid"),
    ):
        answer = api.ask("POST", "/v1/pods", pod)
        assert answer.status == 400
        assert answer.error["message"].startswith(f"{place}: Invalid value: ")
    assert api.ask("GET", "/v1/pods").json["pods"] == []


@pytest.mark.parametrize("name", ["a/b", "../../x y", "ü%2F", "."])
def test_a_pod_of_an_older_agent_is_seen_and_deleted_whatever_its_name(
    api: Served, name: str
) -> None:
    def older() -> str:
        pod = manifest("old", "1")
        pod["metadata"] |= {"name": name, "uid": "0123-uid"}
        text = json.dumps(pod)
        api.call(api.backend.manager.admit(workload_from_api(pod, admitted=True), manifest=text))
        return f"/v1/pods/default/{quote(name, safe='')}"

    path = older()
    assert api.ask("GET", path).json["name"] == name
    assert api.ask("DELETE", path).status == 204
    older()
    assert api.ask("DELETE", "/v1/pods/default/0123-uid").status == 204, "by its uid"
    assert api.ask("GET", "/v1/status").json["pods"] == []
    assert api.ask("DELETE", path).status == 404
    assert api.ask("DELETE", "/v1/pods/other/0123-uid").status == 404


def test_what_is_not_in_force_is_told_or_refused(api: Served) -> None:
    pod = manifest("web", "")
    (container,) = pod["spec"]["containers"]
    container |= {"readinessProbe": {"exec": {"command": ["true"]}}, "image": "web:1"}
    answer = api.ask("POST", "/v1/pods", pod)
    assert answer.status == 201
    probe, image = answer.json["warnings"]
    assert probe.startswith("spec.containers[0].readinessProbe: not in force here: nothing asks")
    assert image.startswith("spec.containers[0].image: not in force here: a process is the")
    container["comand"] = ["x"]
    pod["metadata"]["name"] = "other"
    answer = api.ask("POST", "/v1/pods", pod)
    assert answer.status == 400
    assert answer.error["message"] == (
        'spec.containers[0].comand: unknown field "comand"; did you mean "command"?'
    )
    assert [one["name"] for one in api.ask("GET", "/v1/pods").json["pods"]] == ["web"]


def test_the_grace_of_the_request_counts(api: Served) -> None:
    stubborn = manifest("stubborn", "1", terminationGracePeriodSeconds=600)
    api.ask("POST", "/v1/pods", stubborn)
    wait_until(lambda: phase(api, "stubborn") == "Running")
    api.do(lambda: api.node.runtime.ignores_sigterm.add(container_id(api, "stubborn")))
    began = time.monotonic()
    assert api.ask("DELETE", "/v1/pods/default/stubborn?grace=0.3").status == 204
    assert 0.3 <= time.monotonic() - began < 10


def test_while_a_pod_ends_others_are_answered(api: Served) -> None:
    stubborn = manifest("stubborn", "1", terminationGracePeriodSeconds=1)
    api.ask("POST", "/v1/pods", stubborn)
    wait_until(lambda: phase(api, "stubborn") == "Running")
    api.do(lambda: api.node.runtime.ignores_sigterm.add(container_id(api, "stubborn")))
    answers: list[int] = []
    deletions = [
        threading.Thread(
            target=lambda: answers.append(api.ask("DELETE", "/v1/pods/default/stubborn").status)
        )
        for _ in range(2)
    ]
    for deletion in deletions:
        deletion.start()
    wait_until(lambda: phase(api, "stubborn") == "Terminating")
    assert api.ask("GET", "/healthz").text == "ok"
    assert answers == []
    for deletion in deletions:
        deletion.join(10 * PATIENCE)
    assert answers == [204, 204], "both waited for the same end"


def test_reconciliation_tells_what_it_repaired(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("db", "2"))
    wait_until(lambda: phase(api, "db") == "Running")
    assert api.ask("POST", "/v1/reconcile").json["drifts"] == []

    def write() -> None:
        api.node.cgroups.shared = CPUSet([0, 2])

    api.do(write)
    (drift,) = api.ask("POST", "/v1/reconcile").json["drifts"]
    assert (drift["container"], drift["expected"], drift["found"]) == (None, "1,4-7", "0,2")
    assert drift["repaired"] is True
    assert api.node.cgroups.shared == CPUSet.parse("1,4-7")


def test_a_refusing_world_is_a_503_with_its_remedy(api: Served) -> None:
    api.backend.fault = StoreError("/var/lib/pinfold/pinfold.db: disk full", "free some space")
    answer = api.ask("POST", "/v1/pods", manifest("web", ""))
    assert answer.status == 503
    assert answer.error["message"] == "/var/lib/pinfold/pinfold.db: disk full"
    assert answer.error["remedy"] == "free some space"
    api.backend.fault = None
    api.do(lambda: api.node.cgroups.faults.fail_at.add(api.node.cgroups.faults.calls + 1))
    answer = api.ask("POST", "/v1/pods", manifest("db", "2"))
    assert answer.status == 503
    assert "the kernel refused" in answer.error["message"]
    assert phase(api, "db") == "Rejected"


def test_what_the_commands_are_refused_names_the_file_and_a_command(
    api: Served, tmp_path: Path
) -> None:
    file = tmp_path / "web.json"
    file.write_text(json.dumps(manifest("web", "") | {"spec": {}}))
    done = CliRunner().invoke(main, ["apply", str(file), "--socket", str(api.path)])
    assert done.exit_code == 1
    place = f"{file}: document 1 (line 1)"
    assert done.output.startswith(f"Error: {place}: pod/web: spec.containers")
    file.write_text("")
    done = CliRunner().invoke(main, ["apply", str(file), "--socket", str(api.path)])
    assert (done.exit_code, done.output) == (
        2,
        f"Error: {file}: nothing in it; name a file with manifests\n",
    )
    gone = CliRunner().invoke(main, ["delete", "nobody", "--socket", str(api.path)])
    assert "there is no pod default/nobody (pinfold status shows the pods)" in gone.output
    assert "/v1/" not in gone.output


def test_watching_into_a_pipe_has_no_control_characters(api: Served) -> None:
    command = [sys.executable, "-m", "pinfold", "status", "--watch", "--socket", str(api.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        watching.terminate()
        assert "\033" not in first + watching.stdout.read()
        assert first.strip()


def test_a_fault_of_the_agent_is_a_500_and_no_end(api: Served) -> None:
    api.backend.fault = ZeroDivisionError("of all things")
    with capture_logs() as logged:
        answer = api.ask("POST", "/v1/pods", manifest("web", ""))
        assert (answer.status, answer.error["code"]) == (500, "InternalError")
        assert "of all things" not in answer.text
        wait_until(lambda: logged)
    assert (logged[0]["log_level"], logged[0]["path"]) == ("error", "/v1/pods")
    assert "of all things" in logged[0]["where"]
    assert api.ask("GET", "/healthz").status == 200


def test_readiness(api: Served) -> None:
    assert api.ask("GET", "/readyz").text == "ok"
    api.backend.told_problems = ["the agent is starting", "no cgroup"]
    answer = api.ask("GET", "/readyz")
    assert answer.status == 503
    assert answer.error["message"] == "the agent is starting; no cgroup"
    assert api.ask("GET", "/healthz").text == "ok"


def test_readiness_as_a_probe_asks(api: Served, tmp_path: Path) -> None:
    """One line in the pod's events, whatever is wrong."""

    def asked(socket: Path) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["status", "--ready", "--socket", str(socket)])
        return done.exit_code, done.output

    assert asked(api.path) == (0, "ready\n")
    api.backend.told_problems = ["the kubelet pins"]
    assert asked(api.path) == (1, "Error: the kubelet pins (wait, or see the agent's log)\n")
    status, text = asked(tmp_path / "none")
    assert (status, text.count("\n")) == (2, 1)
    assert "no agent listens on" in text
    done = CliRunner().invoke(main, ["status", "--ready", "--watch"])
    assert done.exit_code == 2
    assert "exclude each other" in done.output


# ------------------------------------------------------------------------------------------- run


def wrapped(name: str, *cpus: str, **spec: Any) -> dict[str, Any]:
    return manifest(name, *cpus, **{"restartPolicy": "Never", **spec})


def test_a_process_is_taken_over_and_its_exit_told(api: Served) -> None:
    answer = api.ask("POST", "/v1/run", {"manifest": wrapped("job", "2"), "pid": 4242})
    assert answer.status == 200
    assert api.backend.applied == [("run", 4242)]
    (only,) = answer.json["containers"]
    assert (only["state"], only["pid"], only["cpus"]) == ("RUNNING", 4242, "2-3")
    assert api.node.cgroups.allowed(4242) == CPUSet([2, 3]), "before the answer"
    pod = api.do(lambda: api.backend.manager.lives["uid-job"])
    commit = api.node.store.commit
    codes: list[Mapping[str, int]] = []

    async def looked_at(batch: Batch) -> None:
        codes.extend(one.exit_codes for one in batch.put)
        await commit(batch)

    api.node.store.commit = looked_at  # type: ignore[method-assign] # what is written down
    (status,) = api.do(api.node.runtime.known)
    assert (status.pid, status.state) == (4242, ContainerState.RUNNING)
    told: list[Any] = []
    tell = threading.Thread(
        target=lambda: told.append(api.ask("POST", "/v1/run/uid-job/exit", {"code": 7}))
    )
    tell.start()
    wait_until(lambda: api.do(pod.reported.is_set))
    api.do(lambda: api.node.runtime.exit(status.id, None))
    tell.join()
    assert [answer.status for answer in told] == [204]
    assert api.do(pod.gone.is_set), "who is answered finds its CPUs free"
    assert codes[-1] == {"c0": 7}
    assert api.ask("GET", "/v1/status").json["pods"] == [], "it is in the history only"
    assert api.ask("GET", "/v1/explain/default/job").status == 200


def test_a_rejected_run_starts_nothing(api: Served) -> None:
    answer = api.ask("POST", "/v1/run", {"manifest": wrapped("job", "20"), "pid": 4242})
    assert answer.status == 200
    assert answer.json["phase"] == "Rejected"
    assert 4242 not in api.node.cgroups.processes


def test_a_process_that_cannot_be_taken_over_is_an_error(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api:
        answer = api.ask("POST", "/v1/run", {"manifest": wrapped("job", "2"), "pid": 4242})
        assert answer.status == 503
        assert "4242" in answer.error["message"]
        assert "container c0 was not started: " in answer.error["message"]
        assert api.ask("GET", "/v1/status").json["shared"] == "0-7"


@pytest.mark.parametrize("pid", [0, 1, -1, 2**31, 2**80, 1.5, True, "12", None, [], {}])
def test_what_is_no_pid(api: Served, pid: object) -> None:
    answer = api.ask("POST", "/v1/run", {"manifest": wrapped("job", "2"), "pid": pid})
    assert answer.status == 400
    assert answer.error["message"].startswith("pid")
    assert api.backend.applied == []


def test_one_process_is_one_container_and_runs_once(api: Served) -> None:
    for pod in (
        wrapped("two", "1", "1"),
        wrapped("init", "1", init=["1"]),
        wrapped("again", "1", restartPolicy="Always"),
        manifest("default-policy", "1"),
    ):
        answer = api.ask("POST", "/v1/run", {"manifest": pod, "pid": 4242})
        assert answer.status == 400, pod
        assert answer.error["message"].startswith("spec")
    assert api.backend.applied == []


@pytest.mark.parametrize("code", [-1, 256, "0", None, True, 1.0, []])
def test_what_is_no_exit_code(api: Served, code: object) -> None:
    assert api.ask("POST", "/v1/run/uid-job/exit", {"code": code}).status == 400


def test_the_exit_of_an_unknown_pod(api: Served) -> None:
    assert api.ask("POST", "/v1/run/uid-job/exit", {"code": 0}).status == 404
