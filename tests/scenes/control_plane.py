"""A control plane of Kubernetes itself: etcd, kube-apiserver, and those that work beside it.

The programs are in a folder that the environment variable ``KUBEBUILDER_ASSETS`` names, as the test
environments of controllers have it; ``make real-cluster`` builds some.  Whatever their version is.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pinfold.adapters.kubernetes.kubeconfig import from_kubeconfig
from pinfold.adapters.kubernetes.objects import KubeObjects
from tests.scenes.api_exchanges import Answer, asker
from tests.scenes.kube_api_peer import make_certificates
from tests.scenes.kubectl import Kubectl
from tests.scenes.waiting import wait_until

ASSETS: Final = "KUBEBUILDER_ASSETS"
NEEDED: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")

_USERS: Final = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
}
_AUDIT: Final = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""


def why_no_control_plane() -> str:
    """Why there can be none here; "" where there can."""
    folder = os.environ.get(ASSETS, "")
    if not folder:
        return f"needs Kubernetes itself: set {ASSETS}, or make real-cluster"
    missing = [name for name in NEEDED if not (Path(folder) / name).exists()]
    if missing:
        return f"{ASSETS}={folder}: there is no {', '.join(missing)}"
    missing = [name for name in ("kubectl", "openssl") if shutil.which(name) is None]
    return f"needs {', '.join(missing)}" if missing else ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


class ControlPlane:
    """One of its own, in a folder; ``start`` and ``stop`` it, or only its API server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._assets = Path(os.environ[ASSETS])
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd, self._peers, self.port = _free_port(), _free_port(), _free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._certificates = make_certificates(folder)
        # Older ones read this form only.
        words = ("openssl", "ec", "-in", "server.key", "-out", "accounts.key")
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
        self._data = folder / "etcd"
        self.audit = folder / "audit.log"
        (folder / "policy.yaml").write_text(_AUDIT)
        lines = [f'{name}-token,{user},{name},"{group}"' for name, (user, group) in _USERS.items()]
        (folder / "tokens").write_text("\n".join(lines) + "\n")
        for name in _USERS:
            self.config(name, f"{name}-token")

    # ------------------------------------------------------------------------------- programs

    def start(self) -> None:
        """Return when the API server is ready."""
        self.start_etcd()
        self.start_api_server()
        self.start_controllers()

    def start_etcd(self) -> None:
        clients, peers = (f"http://127.0.0.1:{port}" for port in (self._etcd, self._peers))
        self._run(
            "etcd",
            f"--data-dir={self._data}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        )

    def start_api_server(self) -> None:
        of = self._certificates.path
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={of('server.crt')}",
            f"--tls-private-key-file={of('server.key')}",
            f"--client-ca-file={of('ca.crt')}",
            f"--token-auth-file={self.folder}/tokens",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-key-file={of('accounts.key')}",
            f"--service-account-signing-key-file={of('accounts.key')}",
            "--service-account-issuer=https://kubernetes.default.svc",
            # The replicas are where no network of a cluster leads: the endpoints say where.
            "--enable-aggregator-routing=true",
            "--allow-privileged=true",
            # Nobody here tells that a node is ready.
            "--disable-admission-plugins=TaintNodesByCondition",
            f"--audit-policy-file={self.folder}/policy.yaml",
            f"--audit-log-path={self.audit}",
        )
        wait_until(self._is_ready, 120)

    def start_controllers(self, *without: str) -> None:
        """All of them, but those for nodes: here are no kubelets."""
        left_out = ("nodelifecycle", "nodeipam", "cloud-node-lifecycle", "route", *without)
        of = self._certificates.path
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.config_of('controllers')}",
            f"--controllers=*,{','.join(f'-{one}' for one in left_out)}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={of('accounts.key')}",
            f"--root-ca-file={of('ca.crt')}",
            "--leader-elect=false",
            "--concurrent-resource-quota-syncs=5",
            "--bind-address=127.0.0.1",
            f"--secure-port={_free_port()}",
            *self._unless_gone("kube-controller-manager", "--port=0"),
            f"--cert-dir={self.folder}/certificates-of-controllers",
        )

    def start_scheduler(self, configuration: Mapping[str, Any], name: str = "") -> None:
        """Kubernetes' scheduler; how to reach the API server is added to its configuration.

        There may be several, by ``name``; each of them places all pods.
        """
        file = self.folder / f"scheduler{name}.yaml"
        client = {"kubeconfig": str(self.config_of("scheduler"))}
        election = {"leaderElect": False}
        file.write_text(
            yaml.safe_dump(
                {**configuration, "clientConnection": client, "leaderElection": election}
            )
        )
        self._run(
            "kube-scheduler",
            f"--config={file}",
            "--bind-address=127.0.0.1",
            f"--secure-port={_free_port()}",
            *self._unless_gone("kube-scheduler", "--port=0"),
            f"--cert-dir={self.folder}/certificates-of-scheduler",
            "--v=2",
            name=name,
        )

    def _unless_gone(self, program: str, flag: str) -> Sequence[str]:
        """A flag that newer ones do not have any more."""
        words = [str(self._assets / program), "--help"]
        told = subprocess.run(words, capture_output=True, text=True, check=True)
        return (flag,) if f"{flag.partition('=')[0]} " in told.stdout else ()

    def _run(self, program: str, *words: str, name: str = "") -> None:
        with (self.folder / f"{program}{name}.log").open("ab") as log:
            self._running[program + name] = subprocess.Popen(
                [str(self._assets / program), *words], stdout=log, stderr=log
            )

    def kill(self, program: str) -> None:
        """End it at once (SIGKILL)."""
        process = self._running.pop(program)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for program in reversed(list(self._running)):
            self.kill(program)

    def _is_ready(self) -> bool:
        process = self._running["kube-apiserver"]
        log = self.folder / "kube-apiserver.log"
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            return self.raw("/readyz") == "ok"
        except OSError:
            return False

    def _etcdctl(self, *words: str) -> bytes:
        """What etcd says."""
        done = subprocess.run(
            ["etcdctl", f"--endpoints=http://127.0.0.1:{self._etcd}", *words],
            capture_output=True,
            check=True,
            env={**os.environ, "ETCDCTL_API": "3"},
        )
        return done.stdout

    def compact(self) -> None:
        """Have etcd forget what was."""
        told = json.loads(self._etcdctl("get", "nothing", "-w", "json"))
        self._etcdctl("compact", str(told["header"]["revision"]))

    def backup(self) -> Path:
        """A snapshot of what there is now."""
        file = self.folder / "snapshot"
        self._etcdctl("snapshot", "save", str(file))
        return file

    def restore(self, snapshot: Path) -> None:
        """Go back to a snapshot, versions and all."""
        self.kill("kube-apiserver")
        self.kill("etcd")
        self._data = self._data.with_name(f"{self._data.name}-restored")
        self._etcdctl("snapshot", "restore", str(snapshot), "--data-dir", str(self._data))
        self.start_etcd()
        self.start_api_server()

    def forget(self) -> None:
        """No watch and no part of a list goes on from before."""
        self.compact()
        self.kill("kube-apiserver")
        self.start_api_server()

    # ------------------------------------------------------------------------------- clients

    @cached_property
    def version(self) -> tuple[int, int]:
        """Major and minor, such as (1, 34)."""
        told = json.loads(self.raw("/version"))
        return int(told["major"]), int(told["minor"].rstrip("+"))

    def config_of(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"

    def config(self, name: str, token: str) -> Path:
        """A kubeconfig with a token."""
        authority = {"certificate-authority": str(self._certificates.path("ca.crt"))}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "real"}}],
            "clusters": [{"name": "real", "cluster": {"server": self.url, **authority}}],
            "users": [{"name": "real", "user": {"token": token}}],
        }
        self.config_of(name).write_text(yaml.safe_dump(document))
        return self.config_of(name)

    def config_of_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig of a service account, by a token as its pods have."""
        token = self.kubectl("create", "token", name, "-n", namespace, "--duration=3h")
        return self.config(f"{namespace}-{name}", token.strip())

    def client(self, name: str = "admin", **settings: Any) -> KubeObjects:
        """Ours; to be closed."""
        return KubeObjects(from_kubeconfig(self.config_of(name)), **settings)

    def ask(self, method: str, path: str, body: Any, kind: str) -> Answer:
        """As the administrator."""
        tls = ssl.create_default_context(cafile=self._certificates.path("ca.crt"))
        return asker(self.url, "admin-token", tls)(method, path, body, kind)

    def raw(self, path: str) -> str:
        """What a GET as the administrator is answered."""
        return self.ask("GET", path, None, "")[1]

    def kubectl(self, *words: str, given: str = "", status: int | None = 0) -> str:
        """What it says; it has to end with the status, None: with any."""
        kubectl = Kubectl(self.folder, self.config_of("admin"))
        return kubectl(*words, given=given, status=status)

    def get(self, *words: str) -> Any:
        """What ``kubectl get`` finds, as JSON."""
        return json.loads(self.kubectl("get", "-o", "json", *words))

    def kinds(self) -> set[tuple[str, str]]:
        """What it knows: version and kind."""
        found = set()
        for version in self.kubectl("api-versions").split():
            root = "apis" if "/" in version else "api"
            told = json.loads(self.raw(f"/{root}/{version}"))
            found |= {(version, one["kind"]) for one in told["resources"]}
        return found

    def apply(self, *documents: Mapping[str, Any]) -> str:
        return self.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(documents))

    def make_namespace(self, name: str) -> None:
        """One that pods can be created in."""
        # Since 1.21 the server itself gives the label.
        labels = {"kubernetes.io/metadata.name": name}
        metadata = {"name": name, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

        def account() -> Any:
            with suppress(AssertionError):
                found = self.get("serviceaccount", "default", "-n", name)
                return self.version >= (1, 24) or found.get("secrets")
            return None

        wait_until(account, 60)

    def events(self, user: str = "") -> Iterator[dict[str, Any]]:
        """What the audit log has, of one user or of all."""
        for line in self.audit.read_text().splitlines():
            event = json.loads(line)
            if not user or event["user"].get("username") == user:
                yield event


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """A running one; skips the test where there can be none."""
    if problem := why_no_control_plane():
        pytest.skip(problem)
    found = ControlPlane(folder)
    try:
        found.start()
        yield found
    finally:
        found.stop()
