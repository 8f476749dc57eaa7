"""The local API: requests that are wrong get one clear answer, and hurt nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinfold.web.operations import BODY_LIMIT
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import Served, plain, read_all, served


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node on which nothing may come to be."""
    with served(tmp_path_factory.mktemp("api") / "s") as server:
        yield server
        assert server.backend.books.view.pods.records() == []


BODIES = {
    "nothing": b"",
    "no JSON": b"kind: Pod",
    "half an object": b'{"kind": "Pod"',
    "two objects": b"{} {}",
    "not UTF-8": b'{"kind": "\xff\xfe"}',
    "half a surrogate": b'{"kind": "\\ud800"}',
    "not a number": b'{"kind": NaN}',
    "too large a number": b'{"spec": 1e999}',
    "a list": b"[]",
    "a text": b'"Pod"',
    "null": b"null",
    "true": b"true",
    "a number": b"1",
    "nested deeply": b'{"a":' + b"[" * 100_000,
    "nested deeply and complete": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("path", ["/v1/pods", "/v1/run", "/v1/run/uid/exit"])
@pytest.mark.parametrize("what", BODIES)
def test_a_body_that_is_no_object(api: Served, what: str, path: str) -> None:
    answer = api.ask("POST", path, body=BODIES[what])
    assert (answer.status, answer.error["code"]) == (400, "BadRequest")
    assert answer.error["message"].startswith("the body")


MANIFESTS: dict[str, Any] = {
    "empty": {},
    "another kind": {"kind": "Service", "metadata": {"name": "a"}},
    "metadata is a list": {"kind": "Pod", "metadata": []},
    "a name of spaces": manifest("  "),
    "no containers": manifest("a"),
    "containers is a number": {**manifest("a"), "spec": {"containers": 3}},
    "a container is a text": {**manifest("a"), "spec": {"containers": ["x"]}},
    "spec is a text": {**manifest("a", "1"), "spec": "x"},
    "a quantity that is none": manifest("a", "two"),
    "a negative grace": manifest("a", "1", terminationGracePeriodSeconds=-1),
    "an unknown restart policy": manifest("a", "1", restartPolicy="Sometimes"),
    "a command of numbers": manifest("a", "1", containers=[{"name": "c", "command": [1]}]),
    "NUL in a name": manifest("a\0b", "1"),
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_manifest_that_is_no_pod(api: Served, what: str) -> None:
    answer = api.ask("POST", "/v1/pods", MANIFESTS[what])
    assert answer.status == 400, answer.text
    assert answer.error["message"]
    wrapped = {**MANIFESTS[what], "spec": MANIFESTS[what].get("spec", {})}
    if isinstance(wrapped["spec"], dict):
        wrapped["spec"] = {"restartPolicy": "Never", **wrapped["spec"]}
    assert api.ask("POST", "/v1/run", {"manifest": wrapped, "pid": 4242}).status == 400


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "containers", "resources", "limits", "cpu", "env", "command"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(metadata=_JSON, spec=_JSON, pid=_JSON)
def test_whatever_is_sent_is_answered(api: Served, metadata: Any, spec: Any, pid: Any) -> None:
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec}
    try:
        body = json.dumps(pod, allow_nan=False).encode()
    except ValueError:
        return
    assert api.ask("POST", "/v1/pods", body=body).status == 400
    assert api.ask("POST", "/v1/run", {"manifest": pod, "pid": pid}).status == 400
    assert api.ask("POST", "/v1/run/uid/exit", {"code": spec}).status in (400, 404)


def test_unknown_fields_are_not_passed_over(api: Served) -> None:
    pod = manifest("a", "1", restartPolicy="Never")
    answer = api.ask("POST", "/v1/run", {"manifest": pod, "pid": 4242, "pids": []})
    assert answer.status == 400
    assert "'pids'" in answer.error["message"]
    assert api.ask("POST", "/v1/run/uid/exit", {"code": 0, "signal": 9}).status == 400


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("DELETE", "/v1/pods/default/a?grace=-1"),
        ("DELETE", "/v1/pods/default/a?grace=-0.5"),
        ("DELETE", "/v1/pods/default/a?grace=nan"),
        ("DELETE", "/v1/pods/default/a?grace=inf"),
        ("DELETE", "/v1/pods/default/a?grace=1e999"),
        ("DELETE", "/v1/pods/default/a?grace=soon"),
        ("DELETE", "/v1/pods/default/a?grace="),
        ("DELETE", "/v1/pods/default/a?grase=1"),
        ("DELETE", "/v1/pods/default/a?grace=1&grace=2"),
        ("GET", "/v1/history?limit=0"),
        ("GET", "/v1/history?limit=-1"),
        ("GET", "/v1/history?limit=1001"),
        ("GET", "/v1/history?limit=1.5"),
        ("GET", "/v1/history?limit=%C2%B2"),
        ("GET", "/v1/history?limit=99999999999999999999"),
        ("GET", "/v1/history?name=a"),
        ("GET", "/v1/status?pretty=1"),
    ],
)
def test_a_parameter_that_is_wrong(api: Served, method: str, target: str) -> None:
    answer = api.ask(method, target)
    assert answer.status == 400
    name = target.partition("?")[2].partition("=")[0]
    assert name in answer.error["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/status/",
        "/v2/status",
        "/v1/pods/a",
        "//v1/status",
    ],
)
def test_an_unknown_path(api: Served, path: str) -> None:
    answer = api.ask("GET", path)
    assert (answer.status, answer.error["code"]) == (404, "NotFound")
    assert "pinfold schema openapi" in answer.error["remedy"]


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", "/v1/status", "GET, HEAD"),
        ("PUT", "/v1/pods", "GET, HEAD, POST"),
        ("PUT", "/v1/pods/a/b", "DELETE, GET, HEAD, PATCH"),
        ("GET", "/v1/run", "POST"),
        ("OPTIONS", "/v1/run", "POST"),
    ],
)
def test_a_wrong_method(api: Served, method: str, path: str, right: str) -> None:
    answer = api.ask(method, path)
    assert (answer.status, answer.error["code"]) == (405, "MethodNotAllowed")
    assert ", ".join(sorted(answer.headers["allow"].split(", "))) == right


def test_head_is_get_without_a_body(api: Served) -> None:
    answer = api.ask("HEAD", "/v1/status")
    assert (answer.status, answer.text) == (200, "")
    assert int(answer.headers["content-length"]) > 0


def test_a_pod_with_a_strange_name_is_unknown(api: Served) -> None:
    for name in ("%00", "%ff", "..", "%2e%2e", "a%20b", "%F0%9F%90%84", "x" * 5000):
        assert api.ask("GET", f"/v1/pods/default/{name}").status == 404, name
        assert api.ask("DELETE", f"/v1/pods/default/{name}").status == 404, name
        assert api.ask("GET", f"/v1/explain/default/{name}").status == 404, name


def test_a_body_of_just_the_limit_is_read(api: Served) -> None:
    frame = b'{"kind": "Service", "x": ""}'
    body = frame.replace(b'""', b'"' + b"x" * ((BODY_LIMIT) - len(frame)) + b'"')
    assert len(body) == BODY_LIMIT
    assert api.ask("POST", "/v1/pods", body=body).status == 400
    answer = api.ask("POST", "/v1/pods", body=body + b" ")
    assert (answer.status, answer.error["code"]) == (413, "RequestEntityTooLarge")


def test_a_body_that_does_not_say_its_length(api: Served) -> None:
    def chunks(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield b"x" * 65536

    assert api.ask("POST", "/v1/pods", body=chunks(3)).status == 400
    assert api.ask("POST", "/v1/pods", body=chunks(BODY_LIMIT // 65536 + 1)).status == 413


@pytest.mark.parametrize(
    "text",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/ten\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: many\r\n\r\n",
        b"POST /v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 200_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300,
    ],
)
def test_what_is_no_http(api: Served, text: bytes) -> None:
    with plain(api.path) as sock:
        sock.sendall(text)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "BadRequest"


def test_an_upgrade_is_not_granted(api: Served) -> None:
    with plain(api.path) as sock:
        sock.sendall(
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\n"
            b"Upgrade: websocket\r\n\r\n"
        )
        assert read_all(sock).startswith(b"HTTP/1.1 200")
