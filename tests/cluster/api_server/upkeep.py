"""What the server looks after itself: namespaces and custom resources."""

from __future__ import annotations

import jsonschema

from pinfold.planning.fake_cluster import FakeCluster
from pinfold.ports.kubernetes import NAMESPACES, Object, refusal
from tests.cluster.api_server.kinds import CRDS, Kinds, Served


class Upkeep:
    """Keeps the rules of some kinds."""

    def __init__(self, cluster: FakeCluster, kinds: Kinds) -> None:
        self._cluster = cluster
        self._kinds = kinds

    def check(self, served: Served, wanted: Object) -> None:
        if not served.schema:
            return
        error = jsonschema.exceptions.best_match(
            jsonschema.Draft202012Validator(dict(served.schema)).iter_errors(wanted)
        )
        if error is not None:
            kind, name = served.resource.kind, wanted["metadata"]["name"]
            path = ".".join(str(one) for one in error.absolute_path) or "<root>"
            raise refusal(422, "Invalid", f'{kind} "{name}" is invalid: {path}: {error.message}')

    def check_namespace(self, name: str) -> None:
        found = self._cluster.read(NAMESPACES, name)
        if found.get("status", {}).get("phase") == "Terminating":
            raise refusal(
                403,
                "Forbidden",
                f"unable to create new content in namespace {name} because it is being terminated",
            )

    def create_namespace(self, name: str) -> None:
        self._cluster.create(
            NAMESPACES,
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            },
        )

    def end_namespace(self, name: str) -> Object:
        found = self._cluster.read(NAMESPACES, name)
        found["status"] = {"phase": "Terminating"}
        self._cluster.update(NAMESPACES, found, "status")
        for served in list(self._kinds.all()):
            if served.resource.is_namespaced:
                for one in self._cluster.chunk(served.resource, name).objects:
                    self._cluster.delete(served.resource, one["metadata"]["name"], name)
        return self._cluster.delete(NAMESPACES, name)

    def establish(self, crd: Object) -> None:
        conditions = [
            {"type": kind, "status": "True", "reason": "Double", "message": ""}
            for kind in ("NamesAccepted", "Established")
        ]
        crd["status"] = {"conditions": conditions, "acceptedNames": crd["spec"]["names"]}
        self._cluster.update(CRDS, crd, "status")
