"""What deploy/kubernetes makes is taken by an API server, as kubectl sends it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from tests.cluster.api_server.__main__ import kubeconfig
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.roots import ROOT
from tests.scenes.deployed import kustomizations
from tests.scenes.kubectl import Kubectl, kustomized, needs_kubectl

OTHERS = {"Issuer": "issuers", "Certificate": "certificates"}
"""The kinds of others (cert-manager) that are in them."""


def definition(kind: str, plural: str) -> dict[str, object]:
    """That of a kind of cert-manager, which takes anything."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.cert-manager.io"},
        "spec": {
            "group": "cert-manager.io",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


@needs_kubectl
@pytest.mark.parametrize("folder", kustomizations(), ids=lambda path: str(path.relative_to(ROOT)))
def test_kubectl_applies_it_and_finds_it_unchanged(folder: Path, tmp_path: Path) -> None:
    wanted = kustomized(folder)

    async def scenario() -> None:
        async with running(ApiServer()) as api:
            kubectl = Kubectl(tmp_path, kubeconfig(api, tmp_path / "config"))

            def apply() -> None:
                if any(kind in OTHERS for kind, _ in wanted):
                    made = [definition(*one) for one in OTHERS.items()]
                    kubectl("apply", "-f", "-", given=yaml.safe_dump_all(made))
                # Those of a namespace that is not in it are for one that is there.
                named = {one["metadata"].get("namespace") for one in wanted.values()} - {None}
                for name in named - {name for kind, name in wanted if kind == "Namespace"}:
                    kubectl("create", "namespace", name)
                told = kubectl("apply", "-k", str(folder)).splitlines()
                assert len(told) == len(wanted)
                assert all(line.endswith(" created") for line in told), told
                told = kubectl("apply", "-k", str(folder)).splitlines()
                # kubectl always sends the whole selector of a budget, and says so.
                changed = [line for line in told if not line.endswith(" unchanged")]
                assert [line for line in changed if "poddisruptionbudget" not in line] == []
                kubectl("apply", "--server-side", "--force-conflicts", "-k", str(folder))
                kubectl("delete", "--ignore-not-found", "-k", str(folder))

            await asyncio.to_thread(apply)

    asyncio.run(scenario())
