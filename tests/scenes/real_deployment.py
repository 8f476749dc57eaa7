"""A deployment of ``deploy/kubernetes`` in a real cluster; its replicas run beside the cluster."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from tests.scenes.control_plane import ControlPlane
from tests.scenes.kubectl import kustomized
from tests.scenes.replica_process import ReplicaProcess, replica_process
from tests.scenes.waiting import until

WITHOUT_SELECTOR = "- op: remove\n  path: /spec/selector\n"
WITHOUT_PODS = "- op: replace\n  path: /spec/replicas\n  value: 0\n"
_NUMBERS = count()
_LABEL = "kubernetes.io/metadata.name"


def own_address() -> str:
    """An address of this machine that is no loopback: endpoints may have no such."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))  # nothing is sent
        address: str = sock.getsockname()[0]
        return address


class RealDeployment:
    """What the overlays of a folder make: a namespace and a service, both of one name."""

    def __init__(
        self,
        control: ControlPlane,
        name: str,
        overlays: Path,
        *,
        command: Sequence[str],
        words: Sequence[str] = (),
    ) -> None:
        self.control, self.name = control, name
        self._overlays, self._command, self._words = overlays, command, words
        self._folder = control.folder / name
        self.left_out: list[str] = []
        """The kinds that this API server does not know."""

    def deploy(self, overlay: str) -> None:
        """``kubectl apply -k`` an overlay, whose service leads to where its endpoints say."""
        self._folder.mkdir(exist_ok=True)
        service = {"kind": "Service", "name": self.name}
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(self._overlays / overlay, self._folder)],
            "patches": [
                {"target": service, "patch": WITHOUT_SELECTOR},
                {"target": {"kind": "Deployment"}, "patch": WITHOUT_PODS},
                *self._unknown(self._overlays / overlay),
            ],
        }
        (self._folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        if self.control.version < (1, 21):
            # A later server gives the label itself.
            self.control.make_namespace(self.name)
            for name in ("kube-system", self.name):
                self.control.kubectl(
                    *("label", "namespace", name, f"{_LABEL}={name}", "--overwrite")
                )
        # Older servers do not know matchConditions, and a client would refuse the field.
        strict = "--validate=true" if self.control.version >= (1, 28) else "--validate=false"
        self.control.kubectl("apply", strict, "-k", str(self._folder))
        self.config = self.control.config_of_account(self.name, self.name)

    def remove(self) -> None:
        """Have all of it deleted."""
        self.control.kubectl("delete", "--ignore-not-found", "-k", str(self._folder))

    def _unknown(self, overlay: Path) -> list[dict[str, Any]]:
        known = self.control.kinds()
        patches = []
        self.left_out.clear()
        for (kind, name), one in kustomized(overlay).items():
            version = one["apiVersion"]
            if (version, kind) not in known:
                self.left_out.append(f"{version} {kind}")
                meant = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
                patches.append({"patch": yaml.safe_dump({"$patch": "delete", **meant})})
        return patches

    # ----------------------------------------------------------------------------- replicas

    @asynccontextmanager
    async def replicas(
        self, number: int = 2, *words: str
    ) -> AsyncIterator[Sequence[ReplicaProcess]]:
        """So many that are ready, and to which the service leads, until the block ends."""
        async with AsyncExitStack() as stack:
            found = [await stack.enter_async_context(self.replica(*words)) for _ in range(number)]
            self.lead_to(found)
            await until(self.is_asked, 60)
            yield found
            self.lead_to(())
            for one in found:
                # So that the next one leads at once.
                await one.stop()

    @asynccontextmanager
    async def replica(self, *words: str) -> AsyncIterator[ReplicaProcess]:
        """One that is ready."""
        folder = self.control.folder / f"{self.name}-{next(_NUMBERS)}"
        async with replica_process(
            self.config,
            folder,
            *self._words,
            *words,
            command=self._command,
            namespace=self.name,
            host=own_address(),
        ) as found:
            yield found

    def lead_to(self, replicas: Sequence[ReplicaProcess]) -> None:
        """What the endpoints of a Deployment's pods would be."""
        addresses = [{"ip": own_address()}]
        subsets = [
            {"addresses": addresses, "ports": [{"name": "webhook", "port": one.port}]}
            for one in replicas
        ]
        metadata = {"name": self.name, "namespace": self.name}
        made = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets}
        is_there = self.control.kubectl(
            *("get", "endpoints", self.name, "-n", self.name, "--ignore-not-found", "-o", "name")
        )
        verb = "replace" if is_there else "create"
        self.control.kubectl(verb, "-f", "-", given=json.dumps(made))

    def is_asked(self) -> bool:
        """Whether the API server knows where they are."""
        container = {"name": "main", "image": "img"}
        spec = {"containers": [container]}
        look = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "look"}, "spec": spec}
        try:
            self.control.kubectl(
                *("create", "-n", "default", "--dry-run=server", "-f", "-"), given=json.dumps(look)
            )
        except AssertionError:
            return False
        return True
