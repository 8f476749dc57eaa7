"""The agent on the running kernel: needs root, a cgroup tree and two CPUs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pinfold.adapters.cgroup import open_cgroups
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    BUSY,
    IDLE,
    AgentProcess,
    allowed,
    an_agent,
    manifest,
)
from tests.scenes.waiting import PATIENCE, wait_until

CPUS = CPUSet(os.sched_getaffinity(0))


node = pytest.fixture(an_agent)


def test_an_exclusive_pod_beside_noisy_neighbours(node: AgentProcess) -> None:
    """Sampled from the kernel's side: no neighbour on the owner's CPU after its first moment."""
    node.start()
    for number in range(4):
        node.apply(manifest(f"noise-{number}", ("busy", BUSY, "")))
    noise = [node.pids(f"noise-{number}")["busy"] for number in range(4)]
    samples: list[tuple[float, int, CPUSet]] = []
    done = threading.Event()

    def sample() -> None:
        while not done.is_set():
            samples.extend((time.monotonic(), _running_on(pid), allowed(pid)) for pid in noise)

    sampler = threading.Thread(target=sample)
    sampler.start()
    wait_until(lambda: len(samples) >= len(noise))
    stamp = node.folder / "stamp"
    script = (
        f"import time; open({str(stamp)!r}, 'w').write(str(time.monotonic())); time.sleep(1000)"
    )
    try:
        pod = node.apply(manifest("owner", ("main", (sys.executable, "-c", script), "1")))
        wait_until(lambda: stamp.exists() and bool(stamp.read_text()))
        began = float(stamp.read_text())
        wait_until(lambda: time.monotonic() > began + 0.5 and samples[-21:][0][0] >= began)
    finally:
        done.set()
        sampler.join()
    own = CPUSet.parse(pod["containers"][0]["cpus"])
    before = [mask for at, _, mask in samples if at < began]
    after = [(cpu, mask) for at, cpu, mask in samples if at >= began]
    assert any(own & mask for mask in before), "the neighbours could never be on the owner's CPU"
    assert len(after) > 20
    assert not [cpu for cpu, mask in after if cpu in own or not mask.isdisjoint(own)]
    assert allowed(node.pids("owner")["main"]) == own


def _running_on(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])


def test_containers_outlive_the_agent_and_are_adopted(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("web", ("main", IDLE, "")))
    node.apply(manifest("db", ("main", IDLE, "1")))
    pids = {name: node.pids(name)["main"] for name in ("web", "db")}
    own = allowed(pids["db"])
    node.kill()
    assert allowed(pids["db"]) == own
    node.start()
    assert {name: node.pids(name)["main"] for name in pids} == pids
    assert node.run("delete", "pod/db").returncode == 0
    assert own.isdisjoint(CPUSet([0]))
    wait_until(lambda: allowed(pids["web"]) == CPUS - CPUSet([0]))
    wait_until(lambda: _gone(pids["db"]))


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _runs(node: AgentProcess, pod: str) -> bool:
    with contextlib.suppress(Exception):
        return bool(node.pids(pod))
    return False


def test_an_exit_in_the_agents_absence_is_not_lost(node: AgentProcess) -> None:
    node.start()
    go = node.folder / "go"
    script = f"until [ -e {go} ]; do sleep 0.05; done; exit 7"
    node.apply(manifest("job", ("main", ("sh", "-c", script), "1"), restartPolicy="Never"))
    pid = node.pids("job")["main"]
    node.kill()
    go.touch()
    wait_until(lambda: _gone(pid))
    node.start()
    wait_until(lambda: node.pod("job")["phase"] == "Failed")
    assert [c["exit_code"] for c in node.pod("job")["containers"]] == [7]
    assert node.client.get("/v1/status")["shared"] == str(CPUS)


def test_run_passes_status_streams_and_signals(node: AgentProcess) -> None:
    node.start()
    script = "read word; echo got $word on $PINFOLD_CPUS; echo err >&2; exit 3"
    done = node.run("run", "--cpus", "1", "--", "sh", "-c", script, input="hello\n")
    cpus = str(max(CPUS)) if len(CPUS) == 2 else done.stdout.split()[-1]
    assert (done.returncode, done.stdout, done.stderr) == (3, f"got hello on {cpus}\n", "err\n")
    assert node.client.get("/v1/pods")["pods"] == []
    with subprocess.Popen(
        [sys.executable, "-m", "pinfold", "run", "--name", "sleeper", "--", "sleep", "1000"],
        env={**os.environ, "PINFOLD_SOCKET": str(node.socket)},
    ) as child:
        wait_until(lambda: _runs(node, "sleeper"))
        child.send_signal(signal.SIGTERM)
        assert child.wait(20 * PATIENCE) == 128 + signal.SIGTERM
    missing = node.run("run", "--", "no-such-command")
    assert missing.returncode == 127
    assert "no-such-command: No such file or directory" in missing.stderr
    refused = node.run("run", "--cpus", "1000", "--", "true")
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: ")
    names = [pod["name"] for pod in node.client.get("/v1/pods")["pods"]]
    assert not [name for name in names if name.startswith("true")], "it stays in the history only"


def test_the_manifest_folder_is_followed(node: AgentProcess) -> None:
    node.start()
    file = node.manifests / "web.json"
    file.write_text(json.dumps(manifest("web", ("main", IDLE, "1"))))
    wait_until(lambda: len(node.client.get("/v1/pods")["pods"]) == 1)
    first = node.pids("web")["main"]
    file.write_text(json.dumps(manifest("web", ("main", ("sleep", "999"), ""))))
    wait_until(lambda: _main_pids(node) not in ([], [None], [first]))
    assert allowed(node.pids("web")["main"]) == CPUS - CPUSet([0])
    (node.manifests / "bad.yaml").write_text("kind: Deployment\n")
    wait_until(lambda: "only pods run here" in node.log())
    file.unlink()
    wait_until(lambda: node.client.get("/v1/pods")["pods"] == [])


def _main_pids(node: AgentProcess) -> list[int | None]:
    pods = node.client.get("/v1/pods")["pods"]
    return [pod["containers"][0]["pid"] for pod in pods if pod["phase"] == "Running"]


def test_foreign_writes_are_repaired_and_reported(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("db", ("main", IDLE, "1")))
    pid = node.pids("db")["main"]
    own = allowed(pid)
    assert node.client.post("/v1/reconcile")["drifts"] == []
    (file,) = Path("/sys/fs/cgroup").rglob(f"{node.name}/exclusive/pod-*/main/cpuset.cpus")
    file.write_text(str(CPUS))
    # Noticed when it happens: the period of this agent is an hour.
    wait_until(lambda: allowed(pid) == own)
    wait_until(lambda: node.client.get("/v1/history", limit=1)["entries"][0]["kind"] == "repaired")
    document = node.client.get("/v1/history", limit=1)["entries"][0]["document"]
    assert document["found"] == f"effective {CPUS}"
    assert document["repaired"]
    assert node.client.post("/v1/reconcile")["drifts"] == []


def test_processes_that_leave_their_pod_are_brought_back_and_ended_with_it(
    node: AgentProcess, tmp_path: Path
) -> None:
    """One is seen by the reconciliation, the other only when the pod ends."""
    script = f"""
        leave() {{ for f in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do
            [ ! -e $f ] || sh -c "echo $1 > $f"
        done; echo $1 > {tmp_path}/$2; }}
        sleep 1000000 & leave $! first
        (until [ -e {tmp_path}/go ]; do sleep 0.05; done
         setsid sh -c 'sleep 1000000 & echo $! > {tmp_path}/pid'
         leave $(cat {tmp_path}/pid) second) &
        exec sleep 1000000
    """
    node.start()
    node.apply(manifest("db", ("main", ["sh", "-c", script], "1")))

    def told(name: str) -> int:
        wait_until(lambda: (tmp_path / name).exists() and bool((tmp_path / name).read_text()))
        return int((tmp_path / name).read_text())

    first, main = told("first"), node.pids("db")["main"]
    (drift,) = node.client.post("/v1/reconcile")["drifts"]
    assert f"process {first} outside of it" in drift["found"]
    assert drift["repaired"]
    assert allowed(first) == allowed(main)
    assert node.client.post("/v1/reconcile")["drifts"] == []
    assert "pinfold_escaped_processes_total 1.0" in node.client.get("/metrics")

    (tmp_path / "go").touch()
    second = told("second")
    assert node.name not in Path(f"/proc/{second}/cgroup").read_text()
    assert node.run("delete", "pod/db", "--grace=0").returncode == 0
    assert _gone(first)
    assert _gone(second)


def test_limits_are_those_of_the_pod(node: AgentProcess) -> None:
    node.start()
    quotas = []
    for name, cpus in (("capped", "500m"), ("pinned", "1")):
        node.apply(manifest(name, ("main", IDLE, cpus)))
        node.pids(name)
        quotas += [
            path.read_text().split()[0]
            for path in Path("/sys/fs/cgroup").rglob(f"{node.name}/**/main/*")
            if path.name in ("cpu.max", "cpu.cfs_quota_us")
        ]
        node.run("delete", name)
    assert quotas in (["50000", "-1"], ["50000", "max"])


def test_a_second_agent_is_refused(node: AgentProcess) -> None:
    node.start()
    first = node.process
    status, said = node.refused()
    node.process = first
    assert status == 1
    assert f"another agent (process {first.pid if first else 0})" in said
    assert "Traceback" not in said
    assert node.client.get("/readyz") == "ok"


def test_a_record_that_does_not_fit_is_refused_or_repaired(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("db", ("main", IDLE, "1")))
    pid = node.pids("db")["main"]
    node.stop()
    node.config |= {"cpuManagerPolicy": "none"}
    status, said = node.refused()
    assert status == 1
    assert 'configured policy "none" differs from state checkpoint policy "static"' in said
    assert "--on-mismatch=repair" in said
    node.start("--on-mismatch=repair")
    assert node.pids("db")["main"] == pid
    assert allowed(pid) == CPUS - CPUSet([0])


def test_pods_of_another_runtime_are_refused_also_to_repair(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("db", ("main", IDLE, "1")))
    pid = node.pids("db")["main"]
    cpus = allowed(pid)
    node.stop()
    own = node.config["pinfold"]
    node.config["pinfold"] = {**own, "runtime": "nri", "nriSocket": str(node.folder / "nri.sock")}
    for flags in ((), ("--on-mismatch=repair",)):
        status, said = node.refused(*flags)
        assert status == 1
        assert "pods of runtime process are recorded (default/db)" in said
        assert "start with `runtime: process` and delete them, or go back" in said
        assert allowed(pid) == cpus
    node.config["pinfold"] = own
    node.start()
    assert node.pids("db")["main"] == pid


def test_an_agent_of_a_runtime_removes_what_one_without_left(node: AgentProcess) -> None:
    node.start()
    node.kill()
    tree = Path(str(open_cgroups(name=node.name).describe().path))
    assert tree.exists()
    own = node.config["pinfold"]
    node.config["pinfold"] = {**own, "runtime": "nri", "nriSocket": str(node.folder / "nri.sock")}
    node.start()
    assert not tree.exists()


def test_a_corrupt_database_is_refused_and_left_alone(node: AgentProcess) -> None:
    node.start()
    node.stop()
    database = node.state / "pinfold.db"
    database.write_bytes(b"garbage" * 1000)
    status, said = node.refused()
    assert status == 1
    assert f"{database}: file is not a database" in said
    assert "away to start afresh" in said
    assert database.read_bytes() == b"garbage" * 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cpuManagerPolicy": "adaptive"}, "adaptive"),
        ({"pinfold": {"stateDir": "relative"}}, "stateDir"),
        ({"pinfold": {"nonsense": 1}}, "nonsense"),
        ({"reservedSystemCPUs": "4000"}, "unknown CPU ID: 4000"),
        ({"staticPodPath": 5}, "staticPodPath: must be a string"),
    ],
)
def test_bad_configuration_is_one_clear_line(
    node: AgentProcess, change: dict[str, object], words: str
) -> None:
    node.config |= change
    status, said = node.refused()
    assert status == 2
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_health_metrics_and_description(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("db", ("main", IDLE, "1")))
    node.pids("db")
    metrics = node.client.get("/metrics")
    assert "pinfold_cpu_manager_exclusive_cpu_allocation_count 1.0" in metrics
    assert "pinfold_running_pods 1.0" in metrics
    assert node.client.get("/healthz") == "ok"
    assert "/v1/status" in node.client.get("/openapi.json")["paths"]
    assert (node.socket.stat().st_mode & 0o777) == 0o600
    status = node.run("status", "--no-color")
    assert status.returncode == 0
    assert "default/db" in status.stdout
    explained = node.run("explain", "pod/db")
    assert "1 exclusive CPU:" in explained.stdout
    state = json.loads((node.state / "cpu_manager_state").read_text())
    assert list(state["entries"].values()) == [{"main": str(allowed(node.pids("db")["main"]))}]


def test_the_agent_stays_off_exclusive_cpus(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("db", ("main", IDLE, "1")))
    own = allowed(node.pids("db")["main"])
    assert node.process is not None
    supervisors = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(node.state).encode() in _command(entry)
    ]
    assert supervisors
    for pid in (node.process.pid, *supervisors):
        assert allowed(pid).isdisjoint(own)


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_command_that_cannot_run_says_why(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("x", ("main", ("no-such-command",), ""), restartPolicy="Never"))
    wait_until(lambda: node.pod("x")["phase"] == "Failed")
    pod = node.pod("x")
    assert pod["reason"] == "ContainerCannotRun"
    assert "no-such-command" in pod["message"]
    assert "✗ default/x" in node.run("status", "--no-color").stdout


def test_names_are_checked_wherever_a_pod_comes_from(node: AgentProcess) -> None:
    bad = manifest("a/b", ("main", IDLE, "1"))
    (node.manifests / "1-bad.json").write_text(json.dumps(bad))
    (node.manifests / "2-good.json").write_text(json.dumps(manifest("good", ("main", IDLE, ""))))
    node.start()
    wait_until(lambda: [pod["name"] for pod in node.client.get("/v1/pods")["pods"]] == ["good"])
    file = node.folder / "bad.json"
    file.write_text(json.dumps(bad))
    refused = node.run("apply", str(file))
    assert refused.returncode == 1
    assert 'metadata.name: Invalid value: "a/b": a lowercase RFC 1123 subdomain' in refused.stderr
    file.write_text("\n".join(map(json.dumps, (bad, manifest("next", ("main", IDLE, ""))))))
    both = node.run("apply", str(file))
    assert (both.returncode, both.stdout) == (1, "pod/next admitted to the shared pool\n")
    where = f"Error: {file}: document 1 (line 1): pod/a/b: metadata.name: "
    assert both.stderr.startswith(f"{where}Invalid value")
    named = node.run("run", "--name", "A_b", "--", "true")
    assert named.returncode == 2
    assert '--name: Invalid value: "A_b": a lowercase RFC 1123 subdomain' in named.stderr
    generated = manifest("", ("main", IDLE, ""))
    generated["metadata"] = {"generateName": "web-" + "x" * 80}
    answer = node.apply(generated)
    assert len(answer["name"]) == 63
    assert answer["name"].startswith("web-xxx")
    assert node.run("delete", f"pod/{answer['name']}").returncode == 0
    assert node.log().count("1-bad.json") == 1, "it is said once"


def test_a_pod_that_an_older_agent_could_not_start_is_let_go(node: AgentProcess) -> None:
    """Its uid was too long for a cgroup's name; it held a CPU, and nothing ended it."""
    node.start()
    answer = node.apply(manifest("old", ("main", ("no-such-command",), "1")))
    node.kill()
    uid = "u" * 201
    database = sqlite3.connect(node.state / "pinfold.db")
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
        for _, column, *_ in database.execute(f"PRAGMA table_info({table})").fetchall():
            if column in ("uid", "pod_uid", "manifest"):
                database.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?, ?)",  # noqa: S608 - names of the schema
                    (answer["uid"], uid),
                )
    database.commit()
    database.close()
    node.start()
    assert node.pod("old")["uid"] == uid
    deleted = node.run("delete", "--grace", "0", "pod/old")
    assert (deleted.returncode, deleted.stderr) == (0, "")
    status = node.client.get("/v1/status")
    assert (status["pods"], status["shared"]) == ([], str(CPUS))


def test_all_pods_are_deleted_at_once_and_one_that_stays_stops_nobody(node: AgentProcess) -> None:
    node.start()
    # Each needs a second from SIGTERM on; one after the other would take as many as they are.
    slow = ("sh", "-c", "trap 'sleep 1; exit' TERM; while :; do sleep 0.02; done")
    for number in range(8):
        node.apply(manifest(f"slow-{number}", ("main", slow, ""), terminationGracePeriodSeconds=30))
        node.pids(f"slow-{number}")
    ending = node.begin("delete", "--all")
    wait_until(lambda: {p["phase"] for p in node.client.get("/v1/pods")["pods"]} == {"Terminating"})
    out, err = ending.communicate(timeout=60 * PATIENCE)
    assert (ending.returncode, err) == (0, "")
    assert sorted(out.splitlines()) == [f"pod/slow-{number} deleted" for number in range(8)]
    uid = node.apply(manifest("there", ("main", IDLE, "")))["uid"]
    assert node.run("delete", uid).stdout == f"pod/{uid} deleted\n"
    node.apply(manifest("there", ("main", IDLE, "")))
    some = node.run("delete", "pod/missing", "pod/there", "nowhere/x")
    assert some.returncode == 1
    assert some.stdout == "pod/there deleted\n"
    assert "Error: pod/missing: there is no pod default/missing" in some.stderr
    assert "Error: pod/nowhere/x: there is no pod nowhere/x" in some.stderr
    assert some.stderr.endswith("Error: 2 of 3 pods were not deleted\n")
    assert node.client.get("/v1/pods")["pods"] == []
    assert node.run("delete", "--all").stdout == ""


def test_what_a_manifest_wishes_is_so_or_is_said(node: AgentProcess) -> None:
    """A user that it runs as, a field that is not in force, one that nobody knows."""
    node.start()
    user = {"runAsUser": 65534, "runAsGroup": 65534, "allowPrivilegeEscalation": False}
    pods = [manifest(name, ("main", IDLE, "")) for name in ("a", "b", "c", "d")]
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        container |= {"securityContext": user, "image": "app:1"}
    pods[2]["spec"]["containers"][0]["comand"] = ["x"]
    pods[3]["spec"]["containers"][0]["securityContext"] = {"readOnlyRootFilesystem": True}
    file = node.folder / "pods.json"
    file.write_text("\n".join(map(json.dumps, pods)))
    applied = node.run("apply", str(file))
    assert applied.returncode == 1
    assert applied.stdout.splitlines() == [
        "pod/a admitted to the shared pool",
        "pod/b admitted to the shared pool",
    ]
    warning, misspelt, weaker = applied.stderr.splitlines()
    assert warning.startswith("Warning: pod/a: spec.containers[0].image: not in force here")
    assert 'pod/c: spec.containers[0].comand: unknown field "comand"; did you mean' in misspelt
    assert "pod/d: spec.containers[0].securityContext.readOnlyRootFilesystem: not avail" in weaker
    status = Path(f"/proc/{node.pids('a')['main']}/status").read_text()
    assert "\nUid:\t65534\t65534\t65534\t65534\n" in status
    assert "\nNoNewPrivs:\t1\n" in status
    assert node.log().count("spec.containers[0].image") == 2, "once for each pod"


def test_the_longest_names_are_started_logged_and_let_go(node: AgentProcess) -> None:
    """Whatever the API server takes for a name: files, folders and cgroups can bear it."""
    node.start()
    longest = manifest("x" * 253, ("c" * 63, ("sh", "-c", "echo up; exec sleep 1000"), "1"))
    longest["metadata"] |= {"namespace": "n" * 63, "uid": f"u{'.' * 61}u"}
    longest["spec"]["volumes"] = [{"name": "v" * 63, "emptyDir": {}}]
    (container,) = longest["spec"]["containers"]
    container["volumeMounts"] = [{"name": "v" * 63, "mountPath": "/v"}]
    assert node.apply(longest)["phase"] == "Admitted"
    path = f"/v1/pods/{'n' * 63}/{'x' * 253}"
    wait_until(lambda: node.client.get(path)["phase"] == "Running")
    assert node.client.get(path)["containers"][0]["exclusive"]
    wait_until(lambda: "up" in node.run("logs", f"{'n' * 63}/{'x' * 253}").stdout)
    deleted = node.run("delete", "--grace", "0", f"{'n' * 63}/{'x' * 253}")
    assert (deleted.returncode, deleted.stderr) == (0, "")
    assert node.client.get("/v1/status")["shared"] == str(CPUS)
