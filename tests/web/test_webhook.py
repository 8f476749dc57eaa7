"""The webhook's HTTP: one clear answer to each request, whatever it is."""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import json
import re
import socket
import ssl
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinfold.adapters.certificates import X509
from pinfold.documents.admission_review import AdmissionRequest, AdmissionResponse, Status
from pinfold.ports.errors import PortError
from pinfold.web.bodies import MOST_BODY, MOST_OBJECT, Room
from pinfold.web.limited_connection import Limits
from pinfold.web.replica.certificate import ServedCertificate
from tests.scenes.waiting import until
from tests.scenes.webhook_world import Served, allow, ask, at_once, client_of, pod, review, served


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with served(tmp_path_factory.mktemp("webhook")) as found:
        yield found


def is_failure(document: dict[str, Any], code: int) -> bool:
    """Whether that is a Status of the Kubernetes API, which is no decision."""
    assert document["message"].startswith("pinfold: ")
    return (document["kind"], document["apiVersion"], document["status"], document["code"]) == (
        "Status",
        "v1",
        "Failure",
        code,
    )


def test_the_answer_has_the_requests_uid_and_the_form_of_the_api(world: Served) -> None:
    status, document = world.post(review(uid="one"))
    assert status == 200
    assert document == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "one", "allowed": True},
    }


def test_a_refusal_has_all_that_an_api_server_shows(tmp_path: Path) -> None:
    def deny(request: AdmissionRequest) -> AdmissionResponse:
        return AdmissionResponse(
            uid=request.uid,
            allowed=False,
            status=Status(message="exceeded quota: q", reason="Forbidden", code=403),
            warnings=["nearly"],
            audit_annotations={"charged": "0"},
        )

    with served(tmp_path, at_once(deny)) as world:
        status, document = world.post(review(uid="two"))
    assert status == 200
    assert document["response"] == {
        "uid": "two",
        "allowed": False,
        "status": {"message": "exceeded quota: q", "reason": "Forbidden", "code": 403},
        "warnings": ["nearly"],
        "auditAnnotations": {"charged": "0"},
    }


def test_what_cannot_be_decided_is_left_to_the_failure_policy(tmp_path: Path) -> None:
    async def cannot(_request: AdmissionRequest) -> AdmissionResponse:
        raise PortError("https://api: no answer within 2 s", "is it up?")

    with served(tmp_path, cannot) as world:
        status, document = world.post(review())
        assert status == 503
        assert is_failure(document, 503)
        assert "no answer within 2 s (is it up?)" in document["message"]


def test_a_fault_is_an_answer_without_what_was_asked(tmp_path: Path) -> None:
    def fails(_request: AdmissionRequest) -> AdmissionResponse:
        raise ZeroDivisionError("secret")

    with served(tmp_path, at_once(fails)) as world:
        status, document = world.post(review())
        assert status == 500
        assert is_failure(document, 500)
        assert "secret" not in json.dumps(document)


@pytest.mark.parametrize("said", ["timeout=300ms", "timeout=0.3s", "timeout=30s"])
def test_its_own_deadline_comes_before_the_api_servers(tmp_path: Path, said: str) -> None:
    async def never(_request: AdmissionRequest) -> AdmissionResponse:
        await asyncio.Event().wait()
        raise AssertionError

    with served(tmp_path, never, deadline=0.2) as world:
        status, document = world.post(review(), f"/validate?{said}")
    assert status == 504
    assert is_failure(document, 504)
    assert re.search(r"no decision within 0\.(15|2) s", document["message"])


BAD = [
    (b"", "no AdmissionReview"),
    (b"{", "no AdmissionReview"),
    (b"[]", "Expected `object`"),
    (b"\xff\xfe", "no AdmissionReview"),
    (b"[" * 100_000, "no AdmissionReview"),
    (b'{"a":' * 100_000, "no AdmissionReview"),
    (json.dumps({"kind": "Pod", "apiVersion": "v1"}).encode(), "must be AdmissionReview"),
    (
        json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
        "must be AdmissionReview of admission.k8s.io/v1",
    ),
    (
        json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}).encode(),
        "has no request",
    ),
    (json.dumps({**review(), "request": {"uid": 5}}).encode(), r"$.request.uid"),
    (json.dumps(review(uid="")).encode(), "has no uid"),
]


@pytest.mark.parametrize(("body", "said"), BAD, ids=range(len(BAD)))
def test_a_malformed_review_is_told_what_is_wrong(world: Served, body: bytes, said: str) -> None:
    status, document = world.post(body)
    assert status == 400
    assert is_failure(document, 400)
    assert said in document["message"] or "nested too deeply" in document["message"]


def test_other_paths_and_methods_are_a_status_too(world: Served) -> None:
    status, document = world.post(review(), "/elsewhere")
    assert status == 404
    assert is_failure(document, 404)
    connection = world.connect()
    connection.request("GET", "/validate")
    answer = connection.getresponse()
    assert answer.status == 405
    assert answer.getheader("allow") == "POST"
    assert is_failure(json.loads(answer.read()), 405)
    connection.close()


def test_the_largest_objects_of_an_api_server_are_taken_and_no_larger_ones(world: Served) -> None:
    big = pod(annotations={"a": "x" * (MOST_OBJECT - 4096)})
    status, document = world.post(review(big, operation="UPDATE", oldObject=big))
    assert (status, document["response"]["allowed"]) == (200, True)
    status, document = world.post(b" " * (MOST_BODY + 1))
    assert status == 413
    assert is_failure(document, 413)


def test_a_body_that_does_not_say_its_size_is_limited_as_well(world: Served) -> None:
    connection = world.connect()
    parts = iter([b" " * 65536] * (MOST_BODY // 65536 + 2))
    connection.request(
        "POST",
        "/validate",
        parts,
        encode_chunked=True,
        headers={
            "Transfer-Encoding": "chunked",
        },
    )
    answer = connection.getresponse()
    assert answer.status == 413
    connection.close()


def test_a_slow_request_is_answered_when_its_time_is_over(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(request=0.2, answer=5, idle=5, connections=10)) as world:
        connection = world.connect()
        connection.putrequest("POST", "/validate")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"{")
        answer = connection.getresponse()
        assert answer.status == 408
        assert is_failure(json.loads(answer.read()), 408)
        connection.close()


def test_who_says_nothing_in_the_handshake_keeps_nobody_out(world: Served) -> None:
    silent = [socket.create_connection(("127.0.0.1", world.port)) for _ in range(50)]
    assert world.post(review())[0] == 200
    for one in silent:
        one.close()


def test_a_thousand_at_a_time_get_an_answer_each(tmp_path: Path) -> None:
    """All of them wait for the same thing, which comes when the last one is there."""
    count, there = 1000, 0
    go = asyncio.Event()

    async def together(request: AdmissionRequest) -> AdmissionResponse:
        nonlocal there
        there += 1
        if there == count:
            go.set()
        await go.wait()
        return await allow(request)

    limits = Limits(request=120.0, answer=120.0, idle=90, connections=2000)
    with served(tmp_path, together, deadline=120.0, limits=limits) as world:
        answers = world.ask_at_once(count)
    assert answers == [(200, True, str(number)) for number in range(count)]


def test_large_bodies_wait_for_room_and_small_ones_do_not(tmp_path: Path) -> None:
    seen = threading.Event()

    def decide(request: AdmissionRequest) -> AdmissionResponse:
        seen.set()
        return AdmissionResponse(uid=request.uid, allowed=True)

    with served(tmp_path, at_once(decide), room=Room(MOST_BODY)) as world:
        slow = world.connect()
        slow.putrequest("POST", "/validate")
        slow.putheader("Content-Length", str(MOST_BODY))
        slow.endheaders(b" ")
        # The room is his; who has a small body is answered, who has a large one waits for him.
        assert world.post(review())[0] == 200
        seen.clear()
        large = json.dumps(review(pod(annotations={"a": "x" * 100_000}))).encode()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(world.post, large, "/validate")
            assert not seen.wait(0.3)
            slow.close()
            assert waiting.result(30)[0] == 200
        assert seen.is_set()


def test_what_is_counted(tmp_path: Path) -> None:
    with served(tmp_path) as world:
        world.post(review())
        world.post(b"{")
        text = world.figures.text().decode()
    assert 'pinfold_quota_reviews_total{decision="allowed",resource="pods"} 1.0' in text
    assert 'pinfold_quota_reviews_total{decision="failed",resource="other"} 1.0' in text
    assert 'pinfold_quota_review_seconds_count{resource="pods"} 1.0' in text
    assert "pinfold_quota_reviews_under_way 0.0" in text


def test_the_end_waits_for_what_is_under_way(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    async def slow(request: AdmissionRequest) -> AdmissionResponse:
        begun.set()
        await asyncio.to_thread(go.wait, 20)
        return await allow(request)

    with served(tmp_path, slow) as world, concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(world.post, review(), "/validate")
        assert begun.wait(20)
        world.loop.call_soon_threadsafe(world.stop.set)
        go.set()
        assert answer.result(20)[0] == 200
        world.end()
        with pytest.raises(ConnectionRefusedError):
            world.connect().connect()


# ------------------------------------------------------------------------------- the certificate


def test_a_connection_keeps_its_certificate_and_the_next_one_has_the_new(tmp_path: Path) -> None:
    with served(tmp_path) as world:
        old = world.connect()
        assert ask(old, review())[0] == 200
        before = serial(old)
        pair = world.renew()
        wait_for_certificate(world, pair.certificate)
        new = world.connect()
        assert ask(new, review())[0] == 200
        assert ssl.DER_cert_to_PEM_cert(der(new)).encode() == pair.certificate
        assert ask(old, review())[0] == 200
        assert serial(old) == before
        old.close()
        new.close()


def test_under_load_no_request_is_lost_to_a_new_certificate(tmp_path: Path) -> None:
    with served(tmp_path) as world:
        tls, over = world.trusting(), threading.Event()

        def keep_asking() -> list[int]:
            found, kept = [], world.connect(tls)
            while not over.is_set():
                found.append(ask(kept, review())[0])
                found.append(world.post(review())[0])
            kept.close()
            return found

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(keep_asking) for _ in range(4)]
            for _ in range(5):
                wait_for_certificate(world, world.renew().certificate)
            over.set()
            answers = [status for one in asked for status in one.result(60)]
    assert len(answers) > 8
    assert set(answers) == {200}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("text", [b"", b"nonsense", None])
def test_what_cannot_be_used_is_not_served(tmp_path: Path, which: int, text: bytes | None) -> None:
    with served(tmp_path) as world:
        before = world.certificate.pem
        if text is None:
            world.files[which].unlink()
        else:
            world.files[which].write_bytes(text)
        with pytest.raises(PortError, match=re.escape(str(tmp_path))):
            world.certificate.load()
        assert world.certificate.problem
        assert world.post(review())[0] == 200
        assert world.certificate.pem == before


def test_a_key_of_another_certificate_is_not_served(tmp_path: Path) -> None:
    with served(tmp_path) as world:
        other = world.made.serving(world.authority, ["other"], time.time(), 30)
        world.files[1].write_bytes(other.key)
        with pytest.raises(PortError, match="cannot be used with its key"):
            world.certificate.load()
        assert world.post(review())[0] == 200


def test_a_folder_that_is_another_one_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    with served(folder) as world:
        for away in ("first", "second"):
            folder.rename(tmp_path / away)
            folder.mkdir()
            wait_for_certificate(world, world.renew().certificate)
            # What happens in the one before is of no matter any more.
            (tmp_path / away / "tls.crt").write_bytes(b"nonsense")
        wait_for_certificate(world, world.renew().certificate)
        assert not world.certificate.problem
        assert world.post(review())[0] == 200


def test_a_key_that_everybody_may_read_is_told(tmp_path: Path) -> None:
    with served(tmp_path) as world:
        files = world.files

    async def scenario() -> None:
        certificate = ServedCertificate(*files)
        with structlog.testing.capture_logs() as told:
            following = asyncio.create_task(certificate.follow())
            for mode, known in ((0o640, 0), (0o644, 1), (0o600, 1), (0o604, 2)):
                files[1].chmod(mode)
                files[0].write_bytes(files[0].read_bytes() + b"\n")
                pem = files[0].read_bytes()
                await until(partial(_serves, certificate, pem))
                problems = [one["problem"] for one in told if "problem" in one]
                assert len(problems) == known
            following.cancel()
        assert problems[0] == f"{files[1]}: everybody may read this key (mode 0644)"

    asyncio.run(scenario())


def _serves(certificate: ServedCertificate, pem: bytes) -> bool:
    return certificate.pem == pem + b"\n"


def test_only_those_of_an_authority_may_ask_where_one_is_named(tmp_path: Path) -> None:
    made = X509()
    clients, others = (made.authority(name, time.time(), 30) for name in ("clients", "others"))
    file = tmp_path / "clients.crt"
    file.write_bytes(clients.certificate)
    with served(tmp_path, clients=file) as world:
        for authority, may in ((clients, True), (others, False), (None, False)):
            tls = world.trusting()
            if authority is not None:
                (tmp_path / "client.pem").write_bytes(client_of(authority))
                tls.load_cert_chain(tmp_path / "client.pem")
            for _ in range(2):  # before, and after a new certificate of the server
                connection = world.connect(tls)
                if may:
                    assert ask(connection, review())[0] == 200
                else:
                    # TLS 1.3: the client learns of it when it waits for the answer.
                    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                        ask(connection, review())
                connection.close()
                wait_for_certificate(world, world.renew().certificate)


def der(connection: Any) -> bytes:
    found: bytes = connection.sock.getpeercert(binary_form=True)
    return found


def serial(connection: Any) -> str:
    return str(connection.sock.getpeercert()["serialNumber"])


def wait_for_certificate(world: Served, certificate: bytes) -> None:
    """Until it is the one that is served."""
    while world.certificate.pem.strip() != certificate.strip():
        assert world.thread.is_alive()
        threading.Event().wait(0.01)


# ------------------------------------------------------------------------------------- anything

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from(sorted(review()["request"]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.dictionaries(FIELDS, JSON, max_size=4), junk=st.none() | st.binary(max_size=200))
def test_any_body_has_one_answer(
    world: Served, changes: dict[str, Any], junk: bytes | None
) -> None:
    asked = review(**changes)
    status, document = world.post(asked if junk is None else junk)
    if status == 200:
        assert document["response"] == {"uid": asked["request"]["uid"], "allowed": True}
    else:
        assert is_failure(document, 400)
