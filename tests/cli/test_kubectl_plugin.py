"""``kubectl pinfold``: the program as a plugin of the real kubectl, also at the agent of a node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.roots import ROOT
from tests.scenes.agents_in_pods import AgentsInPods, agents_in_pods
from tests.scenes.kubectl import Kubectl, needs_kubectl
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import served

pytestmark = needs_kubectl


@dataclass
class Laptop:
    """Where a user calls ``kubectl pinfold``: with a kubeconfig, and no agent."""

    folder: Path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.kubectl("pinfold", *words)

    def kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        kubectl = Kubectl(self.folder, self.folder / "config", plugins=self.folder)
        return kubectl.tried(*words)


@pytest.fixture
def laptop(tmp_path: Path) -> Laptop:
    """The scripts are those of the wheel: a line each, of its table."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, place in scripts.items():
        module, _, function = place.partition(":")
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        script.chmod(0o755)
    return Laptop(tmp_path)


@pytest.fixture
def cluster(laptop: Laptop) -> Iterator[AgentsInPods]:
    with (
        served(laptop.folder / "s") as agent,
        agents_in_pods(("worker-1",), agent.path) as peer,
    ):
        agent.ask("POST", "/v1/pods", manifest("db", "2"))
        peer.kubeconfig(laptop.folder / "config")
        yield peer


def test_kubectl_runs_it_and_its_usage_says_so(laptop: Laptop) -> None:
    done = laptop("topology", "--machine", "2s4c2t", "-o", "jsonpath={.name}")
    assert (done.returncode, done.stdout) == (0, "2s4c2t")
    assert "Usage: kubectl pinfold plan [OPTIONS] " in laptop("plan", "--help").stdout
    assert "Usage: kubectl pinfold status" in laptop("status", "--nope").stderr


def test_kubectl_completes_its_words(laptop: Laptop) -> None:
    def completed(*words: str) -> list[str]:
        done = laptop.kubectl("__complete", "pinfold", *words)
        assert done.returncode == 0, done.stderr
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert completed("stat") == ["state", "status", ":4"]
    assert "--policy" in completed("plan", "--pol")
    assert completed("plan", "--topology-manager-policy", "s") == ["single-numa-node", ":4"]
    assert "jsonpath=" in completed("status", "-o", "j")


def test_the_agent_of_a_node_is_asked_in_its_pod(laptop: Laptop, cluster: AgentsInPods) -> None:
    done = laptop("status", "--node", "worker-1", "-o", "name")
    assert (done.returncode, done.stdout, done.stderr) == (0, "pod/db\n", "")
    assert cluster.ran == [["python", "-m", "pinfold", "status", "-o", "name"]]
    done = laptop("history", "pod/db", "--node=worker-1", "--context", "here", "-o", "json")
    assert json.loads(done.stdout)["entries"]


@pytest.mark.parametrize("option", ["-o", "-o=", "--output="])
def test_a_template_of_a_file_is_read_where_the_file_is(
    laptop: Laptop, cluster: AgentsInPods, option: str
) -> None:
    (laptop.folder / "t").write_text("{.pods[*].name}'s \n")
    file = f"jsonpath-file={laptop.folder / 't'}"
    words = (option, file) if option == "-o" else (f"{option}{file}",)
    done = laptop("status", "--node", "worker-1", *words)
    assert (done.returncode, done.stdout) == (0, "db's \n"), done.stderr
    assert len(cluster.ran) == 1


def test_verbose_lists_what_is_run(laptop: Laptop, cluster: AgentsInPods) -> None:
    done = laptop("status", "--node", "worker-1", "--verbose", "--no-color")
    found, there = done.stderr.splitlines()
    assert found.startswith("+ kubectl -n pinfold get pods -l app.kubernetes.io/name=pinfold ")
    assert there == (
        "+ kubectl -n pinfold exec pinfold-worker-1 -c agent -- python -m pinfold status --no-color"
    )
    assert "db" in done.stdout
    assert {path for path in cluster.asked if "/pods" in path} == {
        "/api/v1/namespaces/pinfold/pods",
        "/api/v1/namespaces/pinfold/pods/pinfold-worker-1",
        "/api/v1/namespaces/pinfold/pods/pinfold-worker-1/exec",
    }


def test_what_fails_there_fails_here(laptop: Laptop, cluster: AgentsInPods) -> None:
    done = laptop("audit", "--state", "/no/such/file", "--node", "worker-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: /no/such/file: no such file")
    assert "terminated with exit code" not in done.stderr
    assert len(cluster.ran) == 1


def test_a_kubectl_that_a_signal_ends_is_ended_with_like_in_a_shell(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\ncase "$*" in *exec*) kill -KILL $$ ;; *) echo agent ;; esac\n')
    kubectl.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pinfold", "status", "--node", "worker-1"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=False,
    )
    assert done.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--node", "a,spec.x=y"),
        ("--node", "-A"),
        ("--node", "gpu-*"),
        ("--agents-namespace", "--all-namespaces"),
        ("--agents-namespace", "a.b"),
    ],
)
def test_what_is_no_name_is_not_given_to_kubectl(tmp_path: Path, option: str, value: str) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$@" >> "$0.asked"\n')
    kubectl.chmod(0o755)
    names = {"--node": "worker-1", "--agents-namespace": "pinfold"} | {option: value}
    done = subprocess.run(
        [sys.executable, "-m", "pinfold", "status", *(f"{k}={v}" for k, v in names.items())],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Error: {option}: {value!r}: " in done.stderr
    assert not (tmp_path / "kubectl.asked").exists()


def test_a_node_without_an_agent_is_told(laptop: Laptop, cluster: AgentsInPods) -> None:
    done = laptop("status", "--node", "worker-9")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: --node worker-9: no agent runs there: namespace pinfold")
    assert cluster.ran == []


@pytest.mark.parametrize(
    ("right", "rule"),
    [
        ("list", "(the rule that is missing: get, list of pods in namespace pinfold)"),
        ("exec", "(the rule that is missing: create of pods/exec in namespace pinfold; mind that"),
    ],
)
def test_a_right_that_is_missing_is_named(
    laptop: Laptop, cluster: AgentsInPods, right: str, rule: str
) -> None:
    cluster.forbidden.add(right)
    done = laptop("status", "--node", "worker-1")
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: kubectl: ")
    assert rule in line


def test_without_kubectl_it_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pinfold", "status", "--node", "worker-1"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: --node: there is no kubectl")


def test_what_says_where_goes_with_a_node() -> None:
    assert shutil.which("kubectl")
    for option in (("--context", "x"), ("--verbose",)):
        done = subprocess.run(
            [sys.executable, "-m", "pinfold", "topology", *option],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "--context and --verbose go with --node" in done.stderr
