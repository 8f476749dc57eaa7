"""Requests to an API server, and the form of its answers: Kubernetes and the double agree."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

NAMESPACE: Final = "exchanges"
Answer = tuple[int, str]
"""HTTP status and text."""
Ask = Callable[[str, str, Any, str], Answer]
"""Method, path, body and its type."""

_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_STEPS: Final = "application/json-patch+json"
_IN: Final = f"/api/v1/namespaces/{NAMESPACE}"
_OF_SERVER: Final = ("managedFields", "selfLink", "labels")
_OF_THE_END: Final = ("deletionGracePeriodSeconds", "deletionTimestamp")
LOOSE: Final = {
    "a pod without a name",
    "no JSON",
    "a dry run of something else",
    "an update of another uid",
    "a JSON patch whose test fails",
    "a patch of a kind that there is not",
    "a part with a token of nothing",
    "the rest of what is forgotten",
}
"""The answers whose words are those of one version, or tell of what is inside a server."""
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def form(answer: Answer) -> dict[str, Any]:
    """What is alike in the answers of all servers: a Status whole, of an object its fields."""
    status, text = answer
    try:
        lines = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return {"http": status, "text": text.strip()}
    if "type" in lines[0]:
        return {"http": status, "events": [_event(one) for one in lines if not _is_ending(one)]}
    return {"http": status, **_object(lines[0])}


def alike(name: str, answered: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of an answer what another server has to answer as well."""
    if name not in LOOSE:
        return answered
    return {key: answered.get(key) for key in ("http", "status", "reason", "code")}


def _is_ending(one: Mapping[str, Any]) -> bool:
    """A real server first notes that a pod is to go; the double does both at once."""
    return one["type"] == "MODIFIED" and "deletionTimestamp" in one["object"]["metadata"]


def _event(one: Mapping[str, Any]) -> dict[str, Any]:
    told = {"type": one["type"], **_object(one["object"])}
    if one["type"] == "DELETED":
        told["metadata"] = [key for key in told["metadata"] if key not in _OF_THE_END]
    return told


def _object(found: Mapping[str, Any]) -> dict[str, Any]:
    if found["kind"] == "Status":
        said = {key: value for key, value in found.items() if key != "apiVersion"}
        if said.get("code") == 410 and "continue" in said["metadata"]:
            said["metadata"] = {"continue": "a token"}
        text = _UID.sub("UID", json.dumps(said))
        return dict(json.loads(re.sub(r"\b\d+ \(\d+\)", "N (N)", text)))
    metadata = [key for key in found["metadata"] if key not in _OF_SERVER]
    told = {"kind": found["kind"], "metadata": sorted(metadata)}
    if "items" in found:
        told["items"] = [sorted(one) for one in found["items"]]
    if found["metadata"].get("name"):
        told["name"] = re.sub(r"^some-.*", "some-", found["metadata"]["name"])
    return told


def _pod(name: str = "", **metadata: Any) -> dict[str, Any]:
    about = {"name": name} if name else {"generateName": "some-"}
    containers = [{"name": "main", "image": "img"}]
    return {"metadata": {**about, **metadata}, "spec": {"containers": containers}}


def exchanges(ask: Ask, forget: Callable[[], None]) -> dict[str, Any]:  # noqa: PLR0915 - one each
    """The forms of the answers, by what was asked; the namespace is there, and nothing in it.

    ``forget`` has the server forget what has been.
    """
    found: dict[str, Any] = {}

    def do(
        name: str, method: str, path: str, body: Any = None, kind: str = _JSON
    ) -> dict[str, Any]:
        answer = ask(method, path, body, kind)
        found[name] = form(answer)
        try:
            return dict(json.loads(answer[1]))
        except ValueError:
            return {}

    pods, quotas = f"{_IN}/pods", f"{_IN}/resourcequotas"
    do("a namespace that is there", "POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    before = do("no pods", "GET", pods)["metadata"]["resourceVersion"]
    do("a pod that is not there", "GET", f"{pods}/a")
    do("one to be deleted that is not there", "DELETE", f"{pods}/a")
    do("one to be changed that is not there", "PATCH", f"{pods}/a", {}, _MERGE)
    do("an unknown resource", "GET", f"{_IN}/gadgets")
    do("an unknown group", "GET", "/apis/example.com/v1/gadgets")
    do("a namespace that is not there", "POST", "/api/v1/namespaces/nowhere/pods", _pod("a"))
    do("a pod without a name", "POST", pods, {"metadata": {}, "spec": _pod("a")["spec"]})
    do("a pod of another namespace", "POST", pods, _pod("a", namespace="other"))
    do("no JSON", "POST", pods, "{")
    made = do("a pod", "POST", pods, _pod("a"))
    do("a pod again", "POST", pods, _pod("a"))
    do("a generated name", "POST", pods, _pod())
    do("a dry run", "POST", f"{pods}?dryRun=All", _pod("dry"))
    do("a dry run of something else", "POST", f"{pods}?dryRun=None", _pod("dry"))
    label = {"metadata": {"labels": {"a": "b"}}}
    changed = do("a merge patch", "PATCH", f"{pods}/a", label, _MERGE)
    do("an update of what has changed", "PUT", f"{pods}/a", made)
    do("an update by another name", "PUT", f"{pods}/b", changed)
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {}}}
    do("a merge patch of what has changed", "PATCH", f"{pods}/a", stale, _MERGE)
    other = {**changed, "metadata": {**changed["metadata"], "uid": "another"}}
    del other["metadata"]["resourceVersion"]
    do("an update of another uid", "PUT", f"{pods}/a", other)
    steps: Any = [{"op": "replace", "path": "/metadata/labels/nothing", "value": "x"}]
    do("a JSON patch of what is not there", "PATCH", f"{pods}/a", steps, _STEPS)
    steps = [{"op": "test", "path": "/metadata/labels/a", "value": "x"}]
    do("a JSON patch whose test fails", "PATCH", f"{pods}/a", steps, _STEPS)
    do("a patch of a kind that there is not", "PATCH", f"{pods}/a", {}, "text/plain")
    binding: dict[str, Any] = {
        "metadata": {"name": "a"},
        "target": {"kind": "Node", "name": "node-1"},
    }
    binding["metadata"]["annotations"] = {"example.com/a": "b"}
    do("a binding of another name", "POST", f"{pods}/b/binding", binding)
    do("a binding", "POST", f"{pods}/a/binding", binding)
    bound = do("a bound pod", "GET", f"{pods}/a")
    found["a bound pod"] |= {
        "node": bound["spec"]["nodeName"],
        "annotations": bound["metadata"].get("annotations"),
        "conditions": [
            {key: one[key] for key in ("type", "status")}
            for one in bound["status"].get("conditions", ())
        ],
    }
    do("a second binding", "POST", f"{pods}/a/binding", binding)
    absent = {**binding, "metadata": {"name": "b"}}
    do("a binding of what is not there", "POST", f"{pods}/b/binding", absent)
    do("a part of a list", "GET", f"{pods}?limit=1")
    do("a part with a token of nothing", "GET", f"{pods}?limit=1&continue=nothing")
    do("a field that nobody selects by", "GET", f"{pods}?fieldSelector=spec.what=a")
    hard = {"hard": {"pinfold.dev/exclusive-cpus": "4"}}
    quota = do("a quota", "POST", quotas, {"metadata": {"name": "q"}, "spec": hard})
    quota["status"] = {"used": {"pinfold.dev/exclusive-cpus": "1"}, **hard}
    quota["metadata"]["annotations"] = {"a": "b"}
    del quota["metadata"]["resourceVersion"]
    quota["spec"] = {"hard": {}}
    written = do("a status with an annotation", "PUT", f"{quotas}/q/status", quota)
    found["a status with an annotation"] |= {
        key: written["metadata"].get("annotations") if key == "annotations" else written.get(key)
        for key in ("spec", "status", "annotations")
    }
    again = do("a status that changes nothing", "PUT", f"{quotas}/q/status", written)
    versions = [one["metadata"]["resourceVersion"] for one in (written, again)]
    found["a status that changes nothing"]["is new"] = versions[0] != versions[1]
    do("a status of what has changed", "PUT", f"{quotas}/q/status", _with_version(written, "1"))
    do("another generated name", "POST", pods, _pod())
    do("a deleted quota", "DELETE", f"{quotas}/q")
    do("a pod that goes", "POST", pods, _pod("gone"))
    do("a deleted pod", "DELETE", f"{pods}/gone")
    watch = f"{pods}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion={before}"
    do("a watch", "GET", watch)
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
    do("a lease that is not there", "GET", f"{leases}/l")
    lease = do("a lease", "POST", leases, lease)
    do("a lease again", "POST", leases, {"metadata": {"name": "l"}, "spec": {}})
    do("a lease by a merge patch", "PATCH", f"{leases}/l", label, _MERGE)
    do("a lease of what has changed", "PUT", f"{leases}/l", lease)
    do("leases", "GET", leases)
    part = do("a part before it is forgotten", "GET", f"{pods}?limit=1")
    do("a pod after that", "POST", pods, _pod("after"))
    forget()
    do("a watch of what is forgotten", "GET", watch)
    token = part["metadata"]["continue"]
    do("the rest of what is forgotten", "GET", f"{pods}?limit=1&continue={token}")
    return found


def _with_version(found: Mapping[str, Any], version: str) -> dict[str, Any]:
    return {**found, "metadata": {**found["metadata"], "resourceVersion": version}}


def asker(url: str, token: str = "", tls: ssl.SSLContext | None = None) -> Ask:
    """One who asks a server by HTTP."""

    def ask(method: str, path: str, body: Any, kind: str) -> Answer:
        headers = {"Content-Type": kind, **({"Authorization": f"Bearer {token}"} if token else {})}
        content = body if isinstance(body, str) else json.dumps(body)
        data = None if body is None else content.encode()
        asked = urllib.request.Request(f"{url}{path}", data, headers, method=method)  # noqa: S310 - ours
        try:
            with urllib.request.urlopen(asked, context=tls, timeout=30) as answer:  # noqa: S310 - same
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return ask
