"""How to reach an API server, and as a pod of its cluster; by a kubeconfig: ``kubeconfig.py``.

Source: the documented places of a pod's service account.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.ports.kubernetes import KubernetesError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"

_MAX_BYTES: Final = 1 << 20


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
    access = Access(_server(host, port), tls, token_file=folder / "token")
    access.bearer()
    return access


def read_text(file: Path, what: str) -> str:
    """A small file's text; raises KubernetesError, which calls it ``what``."""
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


def _server(host: str, port: str) -> str:
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
