"""How to reach an API server: as a pod of the cluster, or by a kubeconfig.

Source: the documented places of a pod's service account, and the kubeconfig file's format.  What
would need a helper program (``exec``, ``auth-provider``) or is not safe is refused.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pinfold.formats.json_or_yaml import DocumentError, read_documents
from pinfold.ports.kubernetes import KubernetesError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"

_MAX_BYTES: Final = 1 << 20
_UNSUPPORTED: Final = {
    "exec": "give this user a token, a tokenFile or a client certificate",
    "auth-provider": "give this user a token, a tokenFile or a client certificate",
    "username": "API servers take no passwords any more; give a token or a client certificate",
    "impersonate": "let the user be who it acts as",
    "as": "let the user be who it acts as",
}


class Access(Struct, frozen=True):
    """An API server and what proves who we are.

    ``token_file`` is read anew for each request, as kubelets replace it; ``tls_name`` is the name
    that the server's certificate has to have where it is not the host's.  ``namespace`` is that of
    the kubeconfig's context, "" where it says none.
    """

    server: str
    tls: ssl.SSLContext | None
    token: str = ""
    token_file: Path | None = None
    tls_name: str = ""
    namespace: str = ""

    def __repr__(self) -> str:
        return f"<Access {self.server}>"  # the token is a secret

    def bearer(self) -> str:
        """The token for a request, "" for none; raises KubernetesError."""
        if self.token_file is None:
            return self.token
        return _token(_read(self.token_file, "the token of the service account"), self.token_file)


def is_in_cluster(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is told where its cluster's API server is."""
    return bool(environment.get(HOST))


def in_cluster(
    environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT
) -> Access:
    """The access of a pod by its service account.

    Raises:
        KubernetesError: this is no pod, or it has no service account.
    """
    host, port = environment.get(HOST, ""), environment.get(PORT, "443")
    if not host:
        raise KubernetesError(f"{HOST} is not set", "run in a pod, or configure a kubeconfig")
    authority = _read(folder / "ca.crt", "the certificate of the cluster's authority")
    tls = _tls(authority, str(folder / "ca.crt"))
    access = Access(_server(host, port), tls, token_file=folder / "token")
    access.bearer()
    return access


def from_kubeconfig(file: Path) -> Access:
    """The access that a kubeconfig's current context describes; raises KubernetesError."""
    return _Kubeconfig(file).access()


class _Kubeconfig:
    """One file; paths in it are relative to its folder."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            documents = list(read_documents(_read(file, "the kubeconfig")))
        except DocumentError as error:
            raise KubernetesError(f"{file}: {error}") from None
        content = documents[0].content if len(documents) == 1 else None
        if not isinstance(content, dict):
            raise KubernetesError(f"{file}: not a kubeconfig", "it is one mapping of kind Config")
        self._content: dict[str, Any] = content

    def access(self) -> Access:
        """The current context's."""
        current = self._text(self._content, "", "current-context")
        if not current:
            raise self._wrong("current-context", "is not set", "kubectl config use-context NAME")
        context = self._named("contexts", "context", current)
        cluster = self._named("clusters", "cluster", self._text(context, "context.", "cluster"))
        user = self._named("users", "user", self._text(context, "context.", "user"))
        server = self._text(cluster, "cluster.", "server").rstrip("/")
        if not server.startswith(("https://", "http://")) or server.endswith("//"):
            raise self._wrong("cluster.server", f"{server!r} is no https:// address", "")
        if cluster.get("insecure-skip-tls-verify") is True:
            raise self._wrong(
                "cluster.insecure-skip-tls-verify",
                "whoever is in between would be obeyed",
                "give certificate-authority-data",
            )
        if self._text(cluster, "cluster.", "proxy-url"):
            raise self._wrong("cluster.proxy-url", "proxies are not supported", "leave it out")
        for unsupported, remedy in _UNSUPPORTED.items():
            if user.get(unsupported):
                raise self._wrong(f"user.{unsupported}", "is not supported", remedy)
        token_file = self._text(user, "user.", "tokenFile")
        access = Access(
            server,
            self._tls(cluster, user) if server.startswith("https://") else None,
            token=self._text(user, "user.", "token"),
            token_file=self._file.parent / token_file if token_file else None,
            tls_name=self._text(cluster, "cluster.", "tls-server-name"),
            namespace=self._text(context, "context.", "namespace"),
        )
        access.bearer()
        return access

    def _tls(self, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
        authority = self._material(cluster, "cluster.", "certificate-authority")
        tls = _tls(authority, f"{self._file}: cluster.certificate-authority")
        certificate = self._material(user, "user.", "client-certificate")
        key = self._material(user, "user.", "client-key")
        if bool(certificate) != bool(key):
            given, missing = ("client-certificate", "client-key")[:: 1 if certificate else -1]
            raise self._wrong(f"user.{missing}", f"is not set, but {given} is", "give both")
        if certificate and key:
            self._identify(tls, certificate, key)
        return tls

    def _identify(self, tls: ssl.SSLContext, certificate: str, key: str) -> None:
        # OpenSSL reads a chain and its key from a file only.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{certificate}\n{key}\n")
            file.flush()
            try:
                # A key with a passphrase would be asked for at the terminal.
                tls.load_cert_chain(file.name, password=lambda: "")
            except (OSError, ValueError) as error:
                raise self._wrong(
                    "user.client-certificate", f"cannot be used with client-key: {error}", ""
                ) from None

    def _material(self, holder: Mapping[str, Any], where: str, field: str) -> str:
        """PEM text: the field with ``-data`` in base64, or a file; "" where neither is."""
        data = self._text(holder, where, f"{field}-data")
        if data:
            try:
                return base64.b64decode(data, validate=True).decode("ascii")
            except (binascii.Error, ValueError):
                raise self._wrong(f"{where}{field}-data", "is not base64 of PEM", "") from None
        file = self._text(holder, where, field)
        return _read(self._file.parent / file, f"{self._file}: {where}{field}") if file else ""

    def _named(self, group: str, kind: str, name: str) -> Mapping[str, Any]:
        if not name:
            raise self._wrong(f"context.{kind}", "is not set", "name one of " + group)
        entries = self._content.get(group)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("name") == name:
                found = entry.get(kind)
                if isinstance(found, dict):
                    return found
        raise self._wrong(group, f"there is no {kind} {name!r}", "")

    def _text(self, holder: Mapping[str, Any], where: str, field: str) -> str:
        value = holder.get(field)
        if value is None or isinstance(value, str):
            return value or ""
        raise self._wrong(f"{where}{field}", "must be a string", "quote it")

    def _wrong(self, field: str, problem: str, remedy: str) -> KubernetesError:
        return KubernetesError(f"{self._file}: {field}: {problem}", remedy)


def _read(file: Path, what: str) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise KubernetesError(f"{file}: {what}: {error.strerror or error}") from None
    if len(raw) > _MAX_BYTES:
        raise KubernetesError(f"{file}: {what}: larger than 1 MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise KubernetesError(f"{file}: {what}: not UTF-8 text") from None


def _token(text: str, file: Path) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise KubernetesError(f"{file}: holds no token", "it is one word")
    return token


def _tls(authority: str, where: str) -> ssl.SSLContext:
    """TLS that trusts this authority; those of the system where it is "".

    What is verified is what other Kubernetes clients verify, whichever Python this is: the chain up
    to the authority that was given, which may itself be signed by another, and the server's name.
    """
    try:
        tls = ssl.create_default_context(cadata=authority or None)
    except (ssl.SSLError, ValueError) as error:
        raise KubernetesError(f"{where}: no PEM certificate: {error}") from None
    # Since Python 3.13 the default is to insist on RFC 5280's form as well; the authorities of many
    # clusters have no key usage, and their certificates no key identifiers.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return tls


def _server(host: str, port: str) -> str:
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
