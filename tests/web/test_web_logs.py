"""The logs of pods, over the API and by the command."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pinfold.adapters.process.output import Log
from pinfold.cli import main
from pinfold.logs.folders import LogFolders
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, UnixConnection, phase, served


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "agent.sock", adopts=True) as server:
        server.node.books.containers.logs = LogFolders(tmp_path / "logs")
        yield server


def admitted(api: Served, name: str, *cpus: str, init: tuple[str, ...] = ()) -> None:
    api.ask("POST", "/v1/pods", manifest(name, *(cpus or ("",)), init=init, restartPolicy="Never"))
    if not init:
        wait_until(lambda: phase(api, name) == "Running")


def written(api: Served, name: str, text: str, container: str = "c0", attempt: int = 0) -> Log:
    folder = api.path.parent / "logs" / f"default_{name}_uid-{name}" / container
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(os.fsencode(folder / f"{attempt}.log"), 1 << 20, 5)
    log.take(text.encode())
    return log


def logs(api: Served, *args: str) -> Result:
    return CliRunner().invoke(main, ["logs", *args, "--socket", str(api.path)])


def test_the_log_of_a_pod_is_what_it_wrote(api: Served) -> None:
    admitted(api, "web")
    assert logs(api, "pod/web").output == ""
    written(api, "web", "one\ntwo\nthree\n")
    assert logs(api, "web").output == "one\ntwo\nthree\n"
    assert logs(api, "web", "--tail", "1").output == "three\n"
    assert logs(api, "web", "--since", "1h", "-c", "c0").output == "one\ntwo\nthree\n"
    stamped = logs(api, "web", "--timestamps", "--tail=1").output
    assert stamped.endswith("Z three\n")
    assert stamped.startswith("20")
    # A pod that has ended has it until it is deleted.
    (status,) = api.node.runtime.known()
    api.do(lambda: api.node.runtime.exit(status.id, 3))
    wait_until(lambda: phase(api, "web") == "Failed")
    assert logs(api, "web", "-f").output == "one\ntwo\nthree\n"
    api.ask("DELETE", "/v1/pods/default/web")
    gone = logs(api, "web")
    assert (gone.exit_code, "there is no pod default/web" in gone.output) == (1, True)
    assert list((api.path.parent / "logs").iterdir()) == []


def test_one_of_several_containers_must_be_named(api: Served) -> None:
    admitted(api, "web", "", "", init=("",))
    result = logs(api, "web")
    assert result.exit_code == 1
    assert (
        "a container name must be specified for pod web, choose one of: [c0 c1]"
        " or one of the init containers: [i0]"
    ) in result.output
    result = logs(api, "web", "-c", "nope")
    assert "container nope is not valid for pod web (it has i0, c0, c1)" in result.output
    written(api, "web", "early\n", "i0")
    assert logs(api, "web", "-c", "i0").output == "early\n"
    waiting = logs(api, "web", "-c", "c1")
    assert "container c1 in pod web is waiting to start" in waiting.output
    assert waiting.exit_code == 1


def test_the_attempt_before(api: Served) -> None:
    admitted(api, "web")
    result = logs(api, "web", "--previous")
    assert "previous terminated container c0 in pod web not found" in result.output
    written(api, "web", "before\n", attempt=0)
    written(api, "web", "now\n", attempt=1)
    assert logs(api, "web", "-p").output == "before\n"
    assert logs(api, "web").output == "now\n"


def test_following_ends_with_the_container(api: Served) -> None:
    admitted(api, "web")
    log = written(api, "web", "one\n")
    connection = UnixConnection(api.path)
    connection.request("GET", "/v1/pods/default/web/log?follow=true")
    answer = connection.getresponse()
    assert answer.read1(100) == b"one\n"
    log.take(b"two\n")
    assert answer.read1(100) == b"two\n"
    (status,) = api.node.runtime.known()
    log.take(b"last\n")
    api.do(lambda: api.node.runtime.exit(status.id, 0))
    assert answer.read() == b"last\n"
    connection.close()


def test_who_stops_following_leaves_nothing_behind(api: Served) -> None:
    admitted(api, "web")
    written(api, "web", "one\n")
    file = str(api.path.parent / "logs")

    def is_open() -> bool:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        found = [str(link.readlink()) for link in links if link.is_symlink()]
        return len([name for name in found if name.startswith(file)]) > 1  # the writer's

    connection = UnixConnection(api.path)
    connection.request("GET", "/v1/pods/default/web/log?follow=true")
    assert connection.getresponse().read1(100) == b"one\n"
    assert is_open()
    connection.close()
    wait_until(lambda: not is_open())


def test_an_agent_that_stops_ends_what_is_followed(api: Served) -> None:
    admitted(api, "web")
    written(api, "web", "one\n")
    results: list[Result] = []
    follower = threading.Thread(target=lambda: results.append(logs(api, "web", "-f")))
    follower.start()
    wait_until(lambda: len(api.do(api.connections)) == 1)
    api.end()
    follower.join(20)
    assert (results[0].exit_code, "the agent did not answer" in results[0].output) == (1, True)


def test_a_pod_of_pinfold_run_has_none(api: Served) -> None:
    run = manifest("mine", "", restartPolicy="Never")
    api.node.cgroups.processes[77] = None
    api.ask("POST", "/v1/run", {"manifest": run, "pid": 77})
    result = logs(api, "mine")
    assert "it goes where the output of its pinfold run goes" in result.output


def test_logs_of_a_kubelet_are_the_kubelet_s(api: Served) -> None:
    admitted(api, "web")
    api.backend.is_kubelets = True
    result = logs(api, "web")
    assert (result.exit_code, "kubectl logs" in result.output) == (1, True)


def test_pods_of_a_kubelet_are_changed_by_the_kubelet(api: Served) -> None:
    admitted(api, "web")
    api.backend.is_kubelets = True
    pod = manifest("more", "", restartPolicy="Never")
    for answer in (
        api.ask("POST", "/v1/pods", pod),
        api.ask("DELETE", "/v1/pods/default/web"),
        api.ask("POST", "/v1/run", {"manifest": pod, "pid": os.getppid()}),
        api.ask("POST", "/v1/run/uid-web/exit", {"code": 0}),
    ):
        assert answer.status == 503
        assert "through Kubernetes" in answer.error["remedy"]
    assert phase(api, "web") == "Running"


@pytest.mark.parametrize(
    "query", ["follow=yes", "tailLines=-1", "tailLines=x", "sinceSeconds=nan", "what=1"]
)
def test_parameters_are_read_strictly(api: Served, query: str) -> None:
    admitted(api, "web")
    answer = api.ask("GET", f"/v1/pods/default/web/log?{query}")
    assert answer.status == 400


def test_durations_and_counts_are_read_strictly(api: Served) -> None:
    for args in (("--since", "5"), ("--since", "-5s"), ("--tail", "-1"), ("--tail", "x")):
        assert logs(api, "web", *args).exit_code == 2
