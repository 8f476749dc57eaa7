"""The API server of the tests asks and answers as Kubernetes itself does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pinfold.cluster.quota.review import Asked, Denied, NothingAsked, PodAsked, review
from pinfold.core.quota.claims import ClaimRules
from pinfold.documents.admission_review import AskedReview
from tests.cluster.api_server.__main__ import kubeconfig
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.roots import ROOT
from tests.scenes.admission_recorder import form, recorded
from tests.scenes.api_exchanges import NAMESPACE, alike, asker, exchanges
from tests.scenes.kubectl import Kubectl, needs_kubectl

FOLDER = ROOT / "tests" / "data" / "api_server"
ANSWERS: dict[str, Any] = json.loads((FOLDER / "answers-1.20.json").read_text())
REVIEWS: dict[str, Any] = {
    one["name"]: one
    for one in map(json.loads, (FOLDER / "reviews-1.20.jsonl").read_text().splitlines())
}


def test_it_answers_as_kubernetes_does() -> None:
    async def scenario() -> dict[str, Any]:
        async with running(ApiServer()) as api:
            api.upkeep.create_namespace(NAMESPACE)
            return await asyncio.to_thread(exchanges, asker(api.url), api.cluster.compact)

    found = asyncio.run(scenario())
    assert found.keys() == ANSWERS.keys()
    for name, answer in ANSWERS.items():
        assert alike(name, found[name]) == alike(name, answer), name


class Double:
    """The API server of the tests with a kubectl, as a control plane is used."""

    version = (1, 20)

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self._api, self.folder = api, folder
        self.kubectl = Kubectl(folder, kubeconfig(api, folder / "config"))

    def apply(self, *documents: Mapping[str, Any]) -> str:
        return self.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(documents))

    def make_namespace(self, name: str) -> None:
        self._api.upkeep.create_namespace(name)


@needs_kubectl
def test_it_asks_webhooks_as_kubernetes_does(tmp_path: Path) -> None:
    async def scenario() -> Mapping[str, Any]:
        async with running(ApiServer()) as api:
            double = Double(api, tmp_path)
            return await asyncio.to_thread(lambda: recorded(double, controllers=False))

    found = asyncio.run(scenario())
    assert REVIEWS.keys() - found.keys() == {"create-by-a-replica-set"}
    for name, asked in found.items():
        assert form(asked) == form(REVIEWS[name]), name


@pytest.mark.parametrize("name", REVIEWS)
def test_what_kubernetes_asks_is_understood(name: str) -> None:
    body = json.dumps(REVIEWS[name]["review"]).encode()
    request = msgspec.json.decode(body, type=AskedReview).request
    assert request is not None
    found: Asked = review(request, ClaimRules())
    if name == "update-of-an-annotation":
        assert isinstance(found, Denied)
        assert "exclusive-cpus.pinfold.dev/pod: may not change" in found.message
    elif name == "create-of-a-generated-name-mutating":
        # It has no name yet, and could be charged under none: quotas are for validating webhooks.
        assert isinstance(found, Denied)
        assert "metadata.name: Required value" in found.message
    elif name in {"binding", "delete"}:
        assert isinstance(found, NothingAsked)
    else:
        assert isinstance(found, PodAsked)
        created = name.startswith("create")
        assert found.request.is_counted == created
        pod = found.request.pod.pod
        assert pod.namespace == "recorded"
        if created and "mutating" not in name:
            assert request.object is not None
            metadata = request.object["metadata"]
            assert (pod.name, pod.uid) == (metadata["name"], metadata["uid"])
        assert request.dry_run == (name == "create-dry-run")
