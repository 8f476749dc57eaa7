"""How a kubeconfig says to reach an API server: one file of a program's, or a user's files.

Source: the kubeconfig file's format, and how ``kubectl`` finds and merges several: of
``KUBECONFIG`` the first file that says something wins, and paths are relative to the file that they
are in.  What is not safe is refused; a helper program (``exec``) is started for a user only, never
for an agent.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pinfold.adapters.kubernetes.access import (
    Access,
    in_cluster,
    is_host,
    is_in_cluster,
    is_token,
    read_text,
    server_problem,
    trusting,
)
from pinfold.adapters.kubernetes.exec_plugin import credential_of
from pinfold.formats.json_or_yaml import DocumentError, read_documents
from pinfold.ports.kubernetes import KubernetesError

VARIABLE: Final = "KUBECONFIG"
USUAL: Final = Path(".kube", "config")
"""Below the home directory."""

_INSTEAD: Final = "give this user a token, a tokenFile or a client certificate"
_UNSUPPORTED: Final = {
    "auth-provider": "it was removed from Kubernetes; use an exec plugin, a token or a certificate",
    "username": "API servers take no passwords any more; give a token or a client certificate",
    "impersonate": "let the user be who it acts as",
    "as": "let the user be who it acts as",
}


def from_kubeconfig(file: Path) -> Access:
    """The access that a kubeconfig's current context describes; raises KubernetesError.

    Nobody sits at a terminal, so a user with a helper program (``exec``) is refused.
    """
    return _Merged([_File(file)]).access()


def users_access(
    file: Path | None = None,
    context: str = "",
    environment: Mapping[str, str] = os.environ,
) -> Access:
    """The access that ``kubectl`` has: by the user's files; in a pod without any by its account.

    Args:
        file: the only file (``--kubeconfig``); None: those of ``KUBECONFIG``, else
            ``~/.kube/config``.
        context: another context than the current one (``--context``).
        environment: of the process.

    Raises:
        KubernetesError: there is none, or it cannot be used; the message names file and field.
    """
    if file is not None:
        return _Merged([_File(file)], runs_plugins=True).access(context)
    said = environment.get(VARIABLE, "")
    home = environment.get("HOME", "")
    places = [Path(one) for one in said.split(os.pathsep) if one]
    if not said and home:
        places = [Path(home, USUAL)]
    files = [_File(one) for one in dict.fromkeys(places) if one.exists()]
    if files:
        return _Merged(files, runs_plugins=True).access(context)
    if is_in_cluster(environment) and not context:
        return in_cluster(environment)
    looked = ", ".join(map(str, places)) or VARIABLE
    raise KubernetesError(
        f"no kubeconfig: {looked} is not there", "give --kubeconfig FILE, or set KUBECONFIG"
    )


class _File:
    """One file as it is written; paths in it are relative to its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            documents = list(read_documents(read_text(path, "the kubeconfig")))
        except DocumentError as error:
            raise KubernetesError(f"{path}: {error}") from None
        content = documents[0].content if len(documents) == 1 else None
        if not isinstance(content, dict):
            raise KubernetesError(f"{path}: not a kubeconfig", "it is one mapping of kind Config")
        self.content: dict[str, Any] = content

    def text(self, holder: Mapping[str, Any], where: str, field: str) -> str:
        """A field that is a text; "" where there is none."""
        value = holder.get(field)
        if value is None or isinstance(value, str):
            return value or ""
        raise self.wrong(f"{where}{field}", "must be a string", "quote it")

    def wrong(self, field: str, problem: str, remedy: str) -> KubernetesError:
        return KubernetesError(f"{self.path}: {field}: {problem}", remedy)


class _Entry(Struct, frozen=True):
    """A context, a cluster or a user, and the file that has it."""

    file: _File
    fields: Mapping[str, Any]
    where: str

    def text(self, field: str) -> str:
        return self.file.text(self.fields, self.where, field)

    def wrong(self, field: str, problem: str, remedy: str = "") -> KubernetesError:
        return self.file.wrong(f"{self.where}{field}", problem, remedy)

    def material(self, field: str) -> str:
        """PEM text: the field with ``-data`` in base64, or a file; "" where neither is."""
        data = self.text(f"{field}-data")
        if data:
            try:
                return base64.b64decode(data, validate=True).decode("ascii")
            except (binascii.Error, ValueError):
                raise self.wrong(f"{field}-data", "is not base64 of PEM") from None
        file = self.text(field)
        if not file:
            return ""
        path = self.file.path
        return read_text(path.parent / file, f"{path}: {self.where}{field}")


class _Merged:
    """Files of which the first that says something wins."""

    def __init__(self, files: Sequence[_File], *, runs_plugins: bool = False) -> None:
        self._files = files
        self._runs_plugins = runs_plugins

    def access(self, context: str = "") -> Access:
        """That of a context; "": the current one."""
        first = self._files[0]
        current = context or next(
            filter(None, (one.text(one.content, "", "current-context") for one in self._files)), ""
        )
        if not current:
            raise first.wrong("current-context", "is not set", "kubectl config use-context NAME")
        chosen = self._named("contexts", "context", current, first)
        cluster = self._named("clusters", "cluster", chosen.text("cluster"), chosen.file)
        user = self._named("users", "user", chosen.text("user"), chosen.file)
        server = _server_of(cluster)
        for unsupported, remedy in _UNSUPPORTED.items():
            if user.fields.get(unsupported):
                raise user.wrong(unsupported, "is not supported", remedy)
        token_file = user.text("tokenFile")
        token, certificate, key = (
            user.text("token"),
            user.material("client-certificate"),
            user.material("client-key"),
        )
        if token and not is_token(token):
            raise user.wrong("token", "cannot be sent", "it is one word of ASCII")
        if user.fields.get("exec") and not self._runs_plugins:
            raise user.wrong("exec", "is not supported", _INSTEAD)
        if user.fields.get("exec") and not (token or token_file):
            given = credential_of(
                user.fields["exec"],
                user.file.path,
                lambda: _exec_cluster(cluster, server),
            )
            token = given.token
            certificate, key = given.certificate or certificate, given.key or key
        if bool(certificate) != bool(key):
            there, missing = ("client-certificate", "client-key")[:: 1 if certificate else -1]
            raise user.wrong(missing, f"is not set, but {there} is", "give both")
        tls = _tls(cluster, user, certificate, key) if server.startswith("https://") else None
        access = Access(
            server,
            tls,
            token=token,
            token_file=user.file.path.parent / token_file if token_file else None,
            tls_name=cluster.text("tls-server-name"),
            namespace=chosen.text("namespace"),
        )
        access.bearer()
        return access

    def _named(self, group: str, kind: str, name: str, asking: _File) -> _Entry:
        if not name:
            raise asking.wrong(f"context.{kind}", "is not set", "name one of " + group)
        for file in self._files:
            entries = file.content.get(group)
            for entry in entries if isinstance(entries, list) else ():
                if isinstance(entry, dict) and entry.get("name") == name:
                    found = entry.get(kind)
                    if isinstance(found, dict):
                        return _Entry(file, found, f"{kind}.")
        raise asking.wrong(group, f"there is no {kind} {name!r}", "")


def _server_of(cluster: _Entry) -> str:
    scheme, colon, rest = cluster.text("server").rstrip("/").partition("://")
    server = f"{scheme.lower() if colon else scheme}{colon}{rest}"
    if problem := server_problem(server):
        raise cluster.wrong("server", problem)
    name = cluster.text("tls-server-name")
    if name and not is_host(name):
        raise cluster.wrong("tls-server-name", "is no name that a certificate can have")
    if cluster.fields.get("insecure-skip-tls-verify") is True:
        raise cluster.wrong(
            "insecure-skip-tls-verify",
            "whoever is in between would be obeyed",
            "give certificate-authority-data",
        )
    if cluster.text("proxy-url"):
        raise cluster.wrong("proxy-url", "proxies are not supported", "leave it out")
    return server


def _exec_cluster(cluster: _Entry, server: str) -> dict[str, Any]:
    """What a plugin is told of the cluster that it is asked for (``provideClusterInfo``)."""
    authority = cluster.material("certificate-authority").encode()
    told: dict[str, Any] = {"server": server}
    if name := cluster.text("tls-server-name"):
        told["tls-server-name"] = name
    if authority:
        told["certificate-authority-data"] = base64.b64encode(authority).decode()
    extensions = cluster.fields.get("extensions")
    for one in extensions if isinstance(extensions, list) else ():
        if isinstance(one, dict) and one.get("name") == "client.authentication.k8s.io/exec":
            told["config"] = one.get("extension")
    return told


def _tls(cluster: _Entry, user: _Entry, certificate: str, key: str) -> ssl.SSLContext:
    authority = cluster.material("certificate-authority")
    tls = trusting(authority, f"{cluster.file.path}: cluster.certificate-authority")
    if not certificate:
        return tls
    # OpenSSL reads a chain and its key from a file only.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{certificate}\n{key}\n")
        file.flush()
        try:
            # A key with a passphrase would be asked for at the terminal.
            tls.load_cert_chain(file.name, password=lambda: "")
        except (OSError, ValueError) as error:
            raise user.wrong(
                "client-certificate", f"cannot be used with client-key: {error}"
            ) from None
    return tls
