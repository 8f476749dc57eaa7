"""How an API server is reached: service accounts, kubeconfigs, and what is wrong with them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.kubernetes.access import (
    Access,
    in_cluster,
    is_in_cluster,
)
from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.adapters.kubernetes.connection import Connection
from pinfold.adapters.kubernetes.kubeconfig import from_kubeconfig
from pinfold.ports.kubernetes import KubernetesError
from tests.scenes.kube_api_peer import TOKEN, Certificates, KubeApiPeer, make_certificates, serving

POD = {"metadata": {"name": "db"}, "spec": {"containers": [{"name": "main"}]}}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def peer(certificates: Certificates) -> Iterator[KubeApiPeer]:
    with serving(certificates) as peer:
        yield peer


async def get_pod(access: Access, name: str = "db") -> Any:
    client = KubeClient(access, timeout=5)
    try:
        return await client.get_pod("default", name)
    finally:
        await client.close()


def edited(peer: KubeApiPeer, file: Path, change: Callable[[Any], object]) -> Path:
    """A kubeconfig of the peer with a change."""
    document = yaml.safe_load(peer.kubeconfig(file).read_text())
    change(document)
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_token(peer: KubeApiPeer, tmp_path: Path) -> None:
    peer.put_pod(POD)
    access = from_kubeconfig(peer.kubeconfig(tmp_path / "config"))
    assert asyncio.run(get_pod(access))["metadata"]["name"] == "db"
    assert peer.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in repr(from_kubeconfig(tmp_path / "config"))


@pytest.mark.parametrize("form", ["data", "files"])
def test_a_client_certificate(peer: KubeApiPeer, tmp_path: Path, form: str) -> None:
    peer.put_pod(POD)
    made = peer.certificates
    user = {
        "data": {
            "client-certificate-data": made.data("user.crt"),
            "client-key-data": made.data("user.key"),
        },
        "files": {"client-certificate": "user.crt", "client-key": "user.key"},
    }[form]
    for name in ("user.crt", "user.key"):
        (tmp_path / name).write_bytes(made.path(name).read_bytes())
    asyncio.run(get_pod(from_kubeconfig(peer.kubeconfig(tmp_path / "config", **user))))
    assert peer.requests[0].client == "user"
    assert "authorization" not in peer.requests[0].headers


def test_a_name_that_the_certificate_has(peer: KubeApiPeer, tmp_path: Path) -> None:
    peer.put_pod(POD)

    def rename(document: Any) -> None:
        document["clusters"][0]["cluster"]["tls-server-name"] = "elsewhere"

    file = edited(peer, tmp_path / "config", rename)
    with pytest.raises(KubernetesError, match=r"(?i)hostname mismatch"):
        asyncio.run(get_pod(from_kubeconfig(file)))
    file.write_text(file.read_text().replace("elsewhere", "kubernetes"))
    asyncio.run(get_pod(from_kubeconfig(file)))


def test_a_server_of_another_authority(peer: KubeApiPeer, tmp_path: Path) -> None:
    def forget(document: Any) -> None:
        del document["clusters"][0]["cluster"]["certificate-authority-data"]

    access = from_kubeconfig(edited(peer, tmp_path / "config", forget))
    with pytest.raises(KubernetesError, match=r"GET /api/v1/.*(?i:certificate verify failed)"):
        asyncio.run(get_pod(access))
    assert peer.requests == []


@pytest.fixture
def strict_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts as Python 3.13 makes them, whichever Python this is."""
    make = ssl.create_default_context

    def strict(*args: Any, **options: Any) -> ssl.SSLContext:
        context = make(*args, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


def shake_hands(peer: KubeApiPeer, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection(("localhost", peer.port), timeout=5) as plain,
        closing(context.wrap_socket(plain, server_hostname="localhost")),
    ):
        pass


@pytest.mark.usefixtures("strict_by_default")
def test_an_authority_without_key_usage_and_identifiers(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path, complete=False)
    with serving(certificates) as peer:
        peer.put_pod(POD)
        strict = ssl.create_default_context(cafile=certificates.path("ca.crt"))
        with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)key (usage|identifier)"):
            shake_hands(peer, strict)
        file = peer.kubeconfig(tmp_path / "config")
        asyncio.run(get_pod(from_kubeconfig(file)))
        # Everything else is verified as before: the name,
        text = file.read_text()
        edited(peer, file, cluster(**{"tls-server-name": "elsewhere"}))
        with pytest.raises(KubernetesError, match=r"(?i)hostname mismatch"):
            asyncio.run(get_pod(from_kubeconfig(file)))
        # and who has signed.
        (tmp_path / "others").mkdir()
        others = make_certificates(tmp_path / "others", complete=False)
        file.write_text(text.replace(certificates.data("ca.crt"), others.data("ca.crt")))
        with pytest.raises(KubernetesError, match=r"(?i)certificate verify failed"):
            asyncio.run(get_pod(from_kubeconfig(file)))
        assert len(peer.requests) == 1


@pytest.mark.usefixtures("strict_by_default")
def test_an_authority_that_another_has_signed(tmp_path: Path) -> None:
    with serving(make_certificates(tmp_path, intermediate=True)) as peer:
        peer.put_pod(POD)
        asyncio.run(get_pod(from_kubeconfig(peer.kubeconfig(tmp_path / "config"))))
        assert len(peer.requests) == 1


def test_a_service_account_whose_token_is_replaced(peer: KubeApiPeer, tmp_path: Path) -> None:
    peer.put_pod(POD)
    (tmp_path / "ca.crt").write_bytes(peer.certificates.path("ca.crt").read_bytes())
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    environment = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(peer.port),
    }
    assert is_in_cluster(environment)
    access = in_cluster(environment, tmp_path)
    asyncio.run(get_pod(access))
    peer.token = "the-next-one"  # noqa: S105 - of a test
    with pytest.raises(
        KubernetesError, match=r"status 401.*is not known or has expired"
    ) as refused:
        asyncio.run(get_pod(access))
    assert refused.value.status == 401
    assert TOKEN not in str(refused.value)
    (tmp_path / "token").write_text("the-next-one")
    asyncio.run(get_pod(access))
    (tmp_path / "token").write_text("")
    with pytest.raises(KubernetesError, match="token: holds no token"):
        asyncio.run(get_pod(access))


def test_addresses_of_servers(tmp_path: Path, certificates: Certificates) -> None:
    (tmp_path / "ca.crt").write_bytes(certificates.path("ca.crt").read_bytes())
    (tmp_path / "token").write_text("t")
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "::1"}, tmp_path).server == "https://[::1]:443"


def test_no_service_account(tmp_path: Path) -> None:
    assert not is_in_cluster({})
    with pytest.raises(KubernetesError, match="KUBERNETES_SERVICE_HOST is not set"):
        in_cluster({}, tmp_path)
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(KubernetesError, match=r"ca\.crt.*No such file"):
        in_cluster(environment, tmp_path)
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(KubernetesError, match=r"ca\.crt: no PEM certificate"):
        in_cluster(environment, tmp_path)


def cluster(**fields: Any) -> Callable[[Any], object]:
    return lambda document: document["clusters"][0]["cluster"].update(fields)


def user(**fields: Any) -> Callable[[Any], object]:
    return lambda document: document["users"][0]["user"].update(fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update({"current-context": ""}), "current-context: is not set"),
        (lambda d: d.update({"current-context": "x"}), "contexts: there is no context 'x'"),
        (lambda d: d.update({"current-context": 7}), "current-context: must be a string"),
        (lambda d: d.update(contexts="here"), "contexts: there is no context 'here'"),
        (lambda d: d["contexts"][0]["context"].pop("user"), "context.user: is not set"),
        (lambda d: d.update(clusters=[]), "clusters: there is no cluster 'tests'"),
        (lambda d: d.update(users=[None]), "users: there is no user 'agent'"),
        (cluster(server="localhost"), "cluster.server: 'localhost' is no https:// address"),
        (cluster(**{"certificate-authority-data": "%"}), "authority-data: is not base64 of PEM"),
        (cluster(**{"certificate-authority-data": "eA=="}), "authority: no PEM certificate"),
        (
            cluster(**{"certificate-authority-data": None, "certificate-authority": "ca.pem"}),
            "ca.pem: .*cluster.certificate-authority: No such file",
        ),
        (cluster(**{"insecure-skip-tls-verify": True}), "insecure-skip-tls-verify: whoever is in"),
        (cluster(**{"proxy-url": "http://p"}), "proxy-url: proxies are not supported"),
        (user(exec={"command": "aws"}), "user.exec: is not supported"),
        (user(username="me"), "user.username: is not supported"),
        (cluster(**{"tls-server-name": "a b"}), "tls-server-name: is no name that a certificate"),
        (user(tokenFile="go\0ne"), "go.*: no name that a file can have"),
        (user(tokenFile="gone"), "gone: .*No such file"),
        (user(**{"client-key-data": "eA=="}), "client-certificate: is not set, but client-key is"),
        (
            user(**{"client-key-data": "eA==", "client-certificate-data": "eA=="}),
            "user.client-certificate: cannot be used with client-key",
        ),
    ],
)
def test_what_is_wrong_with_a_kubeconfig(
    peer: KubeApiPeer, tmp_path: Path, change: Callable[[Any], object], words: str
) -> None:
    file = edited(peer, tmp_path / "config", change)
    with pytest.raises(KubernetesError, match=words) as error:
        from_kubeconfig(file)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    "server",
    [
        "",
        "http:///x",
        "http://",
        "ftp://localhost",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://127.0.0.1:-1",
        "http://127.0.0.1:abc",
        "http://[::1",
        "http://[zz]",
        "http://[1.2.3.4]",
        "http://::1",
        "http://[::1]x",
        "http://xn--/",
        "http://a..b",
        f"http://{'a' * 64}",
        "http://a b",
        "http://a\nb",
        "http://caf\u00e9",
        "http://a/\x01",
        "http://a?token=SECRET",
        "http://a#SECRET",
        "http://me:SECRET@127.0.0.1:1",
        "ftp://me:SECRET@127.0.0.1:1",
        "http://me:SECRET@127.0.0.1:abc",
    ],
)
def test_an_address_that_is_none(peer: KubeApiPeer, tmp_path: Path, server: str) -> None:
    file = edited(peer, tmp_path / "config", cluster(server=server))
    with pytest.raises(KubernetesError, match=r"config: cluster\.server: ") as error:
        from_kubeconfig(file)
    assert str(error.value).isprintable()
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize(
    ("server", "taken"),
    [
        ("HTTP://127.0.0.1:1", "http://127.0.0.1:1"),
        ("HttpS://Some_Host.example.:6443/k8s/clusters/c-1/", None),
        ("https://[::1]:6443", None),
        ("https://[fe80::1]", None),
        ("https://xn--caf-dma.example", None),
    ],
)
def test_an_address_that_is_one(
    peer: KubeApiPeer, tmp_path: Path, server: str, taken: str | None
) -> None:
    file = edited(peer, tmp_path / "config", cluster(server=server))
    scheme, _, rest = server.partition("://")
    expected = taken or f"{scheme.lower()}://{rest.rstrip('/')}"
    assert from_kubeconfig(file).server == expected


def test_a_host_with_letters_that_no_name_has() -> None:
    with pytest.raises(KubernetesError, match="http://xn--ls8h: no name that a host has"):
        Connection(Access("http://xn--ls8h", None), timeout=1)


@pytest.mark.parametrize(
    ("method", "busy", "after", "timeout", "asked"),
    [
        ("GET", 2, "0", 5.0, 3),
        ("GET", 1, "1", 5.0, 2),
        ("GET", 9, "0", 5.0, 4),
        ("GET", 1, "6", 20.0, 1),
        ("GET", 1, "5", 4.0, 1),
        ("GET", 1, "", 5.0, 1),
        ("GET", 1, "-1", 5.0, 1),
        ("GET", 1, "Fri, 31 Dec 1999 23:59:59 GMT", 5.0, 1),
        ("PATCH", 1, "0", 5.0, 1),
    ],
)
def test_a_server_that_has_too_much_to_do(
    peer: KubeApiPeer,
    tmp_path: Path,
    *,
    method: str,
    busy: int,
    after: str,
    timeout: float,
    asked: int,
) -> None:
    """A read waits as it says, a few times and not for long; within its own time."""
    peer.put_pod({"metadata": {"name": "db"}})
    refused = (429, {"kind": "Status", "message": "too many requests"})
    peer.requests.clear()

    async def ask() -> None:
        connection = Connection(from_kubeconfig(peer.kubeconfig(tmp_path / "c")), timeout=timeout)
        try:
            await connection.read(method, "/api/v1/namespaces/default/pods/db")
        finally:
            await connection.close()

    peer.retry_after = after
    peer.failing = lambda _: refused if len(peer.requests) <= busy else None
    try:
        if asked > busy:
            asyncio.run(ask())
        else:
            with pytest.raises(KubernetesError, match="status 429: 'too many requests'") as error:
                asyncio.run(ask())
            assert error.value.status == 429
    finally:
        peer.failing, peer.retry_after = (lambda _: None), ""
    assert len(peer.requests) == asked


@pytest.mark.parametrize("token", ["SECR\u00e9T", "SEC\nRET", "SEC RET", "SECRET\n", "\x01SECRET"])
def test_a_token_that_cannot_be_sent(peer: KubeApiPeer, tmp_path: Path, token: str) -> None:
    file = edited(peer, tmp_path / "config", user(token=token))
    with pytest.raises(KubernetesError) as error:
        from_kubeconfig(file)
    assert str(error.value) == f"{file}: user.token: cannot be sent (it is one word of ASCII)"


def test_a_service_whose_address_is_none(tmp_path: Path, certificates: Certificates) -> None:
    (tmp_path / "ca.crt").write_bytes(certificates.path("ca.crt").read_bytes())
    (tmp_path / "token").write_text("t")
    said = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "tcp://10.0.0.1:443"}
    with pytest.raises(KubernetesError, match=r"KUBERNETES_SERVICE_PORT: .* is no https://"):
        in_cluster(said, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a kubeconfig"),
        ("- a", "not a kubeconfig"),
        ("a: [", "not YAML"),
        ("{}\n---\n{}", "not a kubeconfig"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(KubernetesError, match=words):
        from_kubeconfig(tmp_path / "config")
    with pytest.raises(KubernetesError, match="No such file"):
        from_kubeconfig(tmp_path / "gone")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["here", "https://x", "", "eA=="]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "user", "cluster", "context", "server", "token", "exec"]),
            inner,
        )
    ),
    max_leaves=10,
)


@given(
    st.fixed_dictionaries(
        {"current-context": _VALUES, "contexts": _VALUES, "clusters": _VALUES, "users": _VALUES}
    )
)
def test_any_document_is_access_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_text(yaml.safe_dump(document))
    try:
        from_kubeconfig(file)
    except KubernetesError as error:
        assert str(file) in str(error)  # noqa: PT017 - most are errors, not all


def test_an_agent_without_a_cluster_does_not_load_the_client() -> None:
    code = "import sys, pinfold.agent.wiring, pinfold.agent.nri; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
