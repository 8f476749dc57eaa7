"""How to reach an API server, and as a pod of its cluster; by a kubeconfig: ``kubeconfig.py``.

Source: the documented places of a pod's service account.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from pinfold.ports.kubernetes import KubernetesError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"

_MAX_BYTES: Final = 1 << 20
_MAX_NAME: Final = 253
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")


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
        return _token(
            read_text(self.token_file, "the token of the service account"), self.token_file
        )


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
    authority = read_text(folder / "ca.crt", "the certificate of the cluster's authority")
    tls = trusting(authority, str(folder / "ca.crt"))
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if problem := server_problem(server):
        raise KubernetesError(f"{HOST}, {PORT}: {problem}")
    access = Access(server, tls, token_file=folder / "token")
    access.bearer()
    return access


def read_text(file: Path, what: str) -> str:
    """A small file's text; raises KubernetesError, which calls it ``what``."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise KubernetesError(f"{file}: {what}: {error.strerror or error}") from None
    except ValueError:
        raise KubernetesError(f"{str(file)!r}: {what}: no name that a file can have") from None
    if len(raw) > _MAX_BYTES:
        raise KubernetesError(f"{file}: {what}: larger than 1 MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise KubernetesError(f"{file}: {what}: not UTF-8 text") from None


def is_token(token: str) -> bool:
    """Whether this can be sent as a token: one word."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def is_host(name: str) -> bool:
    """Whether a host, or a certificate, can be called so: a DNS name or an IP address."""
    try:
        if ":" in name:
            return bool(ipaddress.IPv6Address(name))
        return bool(_HOST.fullmatch(name)) and bool(name.encode().decode("idna"))
    except ValueError:
        return False


def server_problem(server: str) -> str:
    """What is wrong with the address of an API server, with a scheme in small letters; "": nothing.

    What may be a password in it is not told.
    """
    if _is_server(server):
        return ""
    if "@" in server:
        return "has a user in it; API servers take no passwords"
    shown = "this" if set(server) & set("?#") else repr(server[:_MAX_NAME])
    return f"{shown} is no https:// address"


def _is_server(server: str) -> bool:
    try:
        parts = urlsplit(server)
        port = parts.port
    except ValueError:
        return False
    host = parts.netloc.removesuffix(f":{port}").removesuffix(":")
    return (
        server.startswith(("https://", "http://"))
        and server.isascii()
        and server.isprintable()
        and not (parts.query or parts.fragment or port == 0)
        and is_host(host.removeprefix("[").removesuffix("]") if ":" in host else host)
        and (":" in host) == (host[:1] + host[-1:] == "[]")
    )


def _token(text: str, file: Path) -> str:
    token = text.strip()
    if not is_token(token):
        raise KubernetesError(f"{file}: holds no token", "it is one word")
    return token


def trusting(authority: str, where: str) -> ssl.SSLContext:
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
