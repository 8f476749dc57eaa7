"""A user's kubeconfigs: which files count, contexts, and programs that print a credential."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.kubernetes import exec_plugin
from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.adapters.kubernetes.exec_plugin import Credential, PluginError, credential_of
from pinfold.adapters.kubernetes.kubeconfig import users_access
from pinfold.ports.kubernetes import KubernetesError
from tests.scenes.kube_api_peer import TOKEN, Certificates, KubeApiPeer, make_certificates, serving

V1 = "client.authentication.k8s.io/v1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def peer(certificates: Certificates) -> Iterator[KubeApiPeer]:
    with serving(certificates) as peer:
        peer.put_node("n1")
        yield peer


def node_by(access: Access) -> Any:
    async def get() -> Any:
        client = KubeClient(access, timeout=5)
        try:
            return (await client.get_node("n1"))["metadata"]["name"]
        finally:
            await client.close()

    return asyncio.run(get())


def environment(*files: Path, home: Path | None = None) -> dict[str, str]:
    said = {"KUBECONFIG": os.pathsep.join(map(str, files))} if files else {}
    return {**said, **({"HOME": str(home)} if home else {})}


def split(peer: KubeApiPeer, folder: Path) -> tuple[Path, Path]:
    """The peer's kubeconfig in two files: the contexts, and what they name."""
    whole = yaml.safe_load(peer.kubeconfig(folder / "whole").read_text())
    first, second = folder / "first", folder / "second"
    first.write_text(yaml.safe_dump({k: whole[k] for k in ("current-context", "contexts")}))
    rest = {k: whole[k] for k in ("clusters", "users")}
    wrong = {"current-context": "elsewhere", "contexts": [{"name": "here", "context": {}}]}
    second.write_text(yaml.safe_dump({**rest, **wrong}))
    return first, second


def test_of_several_files_the_first_that_says_it_wins(peer: KubeApiPeer, tmp_path: Path) -> None:
    first, second = split(peer, tmp_path)
    gone = tmp_path / "gone"
    assert node_by(users_access(environment=environment(gone, first, second))) == "n1"
    with pytest.raises(KubernetesError, match="there is no context 'elsewhere'"):
        users_access(environment=environment(second))


def test_where_a_users_file_is(peer: KubeApiPeer, tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    peer.kubeconfig(tmp_path / ".kube" / "config")
    assert node_by(users_access(environment=environment(home=tmp_path))) == "n1"
    # A file that is named is the only one.
    with pytest.raises(KubernetesError, match=r"other: the kubeconfig: No such file"):
        users_access(tmp_path / "other", environment=environment(home=tmp_path))
    with pytest.raises(KubernetesError, match=r"no kubeconfig: .*/none is not there .*KUBECONFIG"):
        users_access(environment=environment(tmp_path / "none", home=tmp_path))
    with pytest.raises(KubernetesError, match="no kubeconfig"):
        users_access(environment={})
    in_pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    with pytest.raises(KubernetesError, match=r"serviceaccount/ca\.crt|no kubeconfig"):
        users_access(environment=in_pod)


def test_a_context_that_is_named(peer: KubeApiPeer, tmp_path: Path) -> None:
    file = peer.kubeconfig(tmp_path / "config")
    document = yaml.safe_load(file.read_text())
    document["current-context"] = "gone"
    file.write_text(yaml.safe_dump(document))
    assert node_by(users_access(file, "here")) == "n1"
    with pytest.raises(KubernetesError, match="there is no context 'gone'"):
        users_access(file)


def plugin(folder: Path, script: str, **more: Any) -> dict[str, Any]:
    program = folder / "bin" / "login"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"apiVersion": V1, "command": "./bin/login", **more}


def printed(**status: str) -> str:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})


def with_plugin(peer: KubeApiPeer, folder: Path, field: dict[str, Any]) -> Path:
    file = peer.kubeconfig(folder / "config")
    document = yaml.safe_load(file.read_text())
    document["users"][0]["user"] = {"exec": field}
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_plugin_prints_a_token(peer: KubeApiPeer, tmp_path: Path) -> None:
    script = 'printf %s "$KUBERNETES_EXEC_INFO" > "$SEEN"; printf \'%s\' "$1"'
    seen = tmp_path / "seen"
    field = plugin(
        tmp_path,
        script,
        args=[printed(token=TOKEN)],
        env=[{"name": "SEEN", "value": str(seen)}],
        provideClusterInfo=True,
        interactiveMode="IfAvailable",
    )
    assert node_by(users_access(with_plugin(peer, tmp_path, field))) == "n1"
    told = json.loads(seen.read_text())
    assert (told["kind"], told["apiVersion"]) == ("ExecCredential", V1)
    assert told["spec"]["cluster"]["server"] == peer.server
    assert told["spec"]["interactive"] is False


def test_a_plugin_prints_a_certificate(peer: KubeApiPeer, tmp_path: Path) -> None:
    user, key = (peer.certificates.path(f"user.{one}").read_text() for one in ("crt", "key"))
    text = printed(clientCertificateData=user, clientKeyData=key)
    (tmp_path / "answer").write_text(text)
    field = plugin(tmp_path, f"cat {tmp_path}/answer")
    assert node_by(users_access(with_plugin(peer, tmp_path, field))) == "n1"
    assert peer.requests[0].client == "user"


@pytest.mark.parametrize(
    ("script", "more", "words"),
    [
        ("exit 3", {}, "ended with status 3"),
        ("echo hello", {}, "printed no ExecCredential"),
        ("echo '{}'", {}, "printed no ExecCredential"),
        (f"echo '{printed()}'", {}, "neither a token nor a certificate"),
        (f"echo '{printed(clientKeyData='x')}'", {}, "neither a token nor a certificate"),
        (f"echo '{printed(token='a')}' | sed s/v1/v1beta1/", {}, "and not one of"),  # noqa: S106 - nobody's
        ("true", {"apiVersion": "v1"}, "exec.apiVersion: 'v1' is not supported"),
        ("true", {"command": "no-such-login", "installHint": "get it"}, r"no program.*\(get it\)"),
        ("true", {"command": "bin/none"}, "no program 'bin/none'"),
        ("true", {"command": 7}, "user.exec: .*command"),
        ("true", {"interactiveMode": "Always"}, "standard input is no terminal"),
        ("true", {"env": [{"name": "a=b", "value": "c"}]}, "cannot be started|neither|printed no"),
    ],
)
def test_what_is_wrong_with_a_plugin(
    peer: KubeApiPeer, tmp_path: Path, script: str, more: dict[str, Any], words: str
) -> None:
    file = with_plugin(peer, tmp_path, {**plugin(tmp_path, script), **more})
    with pytest.raises(KubernetesError, match=words) as error:
        users_access(file)
    assert str(file) in str(error.value)
    assert peer.requests == []


@pytest.mark.parametrize("script", ["exec yes", "yes", "yes & wait"])
def test_a_plugin_that_does_not_stop_printing(
    peer: KubeApiPeer, tmp_path: Path, script: str
) -> None:
    file = with_plugin(peer, tmp_path, plugin(tmp_path, f"echo $$ > {tmp_path}/group; {script}"))
    with pytest.raises(PluginError, match=r"login: printed no ExecCredential: more than 1 MiB"):
        users_access(file)
    assert _is_gone(int((tmp_path / "group").read_text()))


def _is_gone(group: int) -> bool:
    """Whether nobody of a process group lives; one that was killed may take a moment."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("script", ["sleep 1000", "sleep 1000 & wait", "exec >&-; sleep 1000"])
def test_a_plugin_that_does_not_end(
    peer: KubeApiPeer, tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_plugin, "TIMEOUT", 0.5)
    file = with_plugin(peer, tmp_path, plugin(tmp_path, f"echo $$ > {tmp_path}/group; {script}"))
    with pytest.raises(PluginError, match=r"login: has not ended within 0\.5 s"):
        users_access(file)
    assert _is_gone(int((tmp_path / "group").read_text()))


def test_a_plugin_that_leaves_somebody_behind(peer: KubeApiPeer, tmp_path: Path) -> None:
    """A browser, or a cache of credentials: it has the plugin's standard output, and lives on."""
    (tmp_path / "answer").write_text(printed(token=TOKEN))
    script = f"sleep 1000 & echo $! > {tmp_path}/left; cat {tmp_path}/answer"
    before = time.monotonic()
    access = users_access(with_plugin(peer, tmp_path, plugin(tmp_path, script)))
    assert time.monotonic() - before < 30
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert node_by(access) == "n1"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries({"apiVersion": st.just(V1) | _JSON, "kind": st.just("ExecCredential")})
    | _JSON,
    st.dictionaries(st.sampled_from(["token", "clientKeyData", "clientCertificateData"]), _JSON),
)
def test_whatever_a_plugin_prints_is_a_credential_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, document: Any, status: Any
) -> None:
    folder = tmp_path_factory.getbasetemp()
    if isinstance(document, dict):
        document = {**document, "status": status}
    (folder / "printed").write_text(json.dumps(document))
    field = {"apiVersion": V1, "command": "cat", "args": [str(folder / "printed")]}
    try:
        given_ = credential_of(field, folder / "config", dict)
    except KubernetesError as error:
        assert "user.exec: cat" in str(error)  # noqa: PT017 - most are errors, not all
    else:
        assert isinstance(given_, Credential)
