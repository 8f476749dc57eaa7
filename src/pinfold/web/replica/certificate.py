"""The server's certificate: read from files, and read again when they change.

A connection keeps the certificate with which it began; the next one gets the newest.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import structlog

from pinfold.linux.watched_files import looks_at
from pinfold.ports.errors import PortError

_MOST_BYTES: Final = 1 << 20
_REMEDY: Final = "it has to be a PEM chain with its key, as in a Secret of type kubernetes.io/tls"

log = structlog.get_logger("pinfold.web")


class ServedCertificate:
    """A certificate with its key, in two files that are watched.

    ``clients`` is a file with the authorities of those who may connect; None: everybody may.

    Attributes:
        context: for a server; with it every connection gets the certificate of its moment.
        problem: why what is in the files is not what is served; "" while it is.
        count: how often a certificate was taken.
        changed: called when something has happened to the files.
    """

    def __init__(self, certificate: Path, key: Path, clients: Path | None = None) -> None:
        self.files = (certificate, key)
        self._clients = clients
        self.problem = f"{certificate}: there is no certificate yet"
        self.count = 0
        self.changed: Callable[[], None] = lambda: None
        self._exposed = ""
        self._pem = b""
        self._current: ssl.SSLContext | None = None
        self.context = _server_context(clients)
        self.context.sni_callback = self._choose

    @property
    def pem(self) -> bytes:
        """The chain that is served; empty before the first."""
        return self._pem.partition(b"-----BEGIN PRIVATE KEY")[0]

    def held(self) -> tuple[bytes, bytes]:
        """The certificate and the key that the files hold now; empty where they cannot be read."""
        try:
            return _read(self.files[0]), _read(self.files[1])
        except PortError:
            return b"", b""

    def load(self) -> bool:
        """Serve what is in the files; whether that is another certificate than before.

        Raises:
            PortError: it cannot be used; what was served is served on.
        """
        try:
            pem = b"\n".join(_read(file) for file in self.files)
            if pem == self._pem:
                self.problem = ""
                return False
            fresh = _server_context(self._clients)
            _identify(fresh, pem, self.files[0])
        except PortError as error:
            self.problem = str(error)
            raise
        self._current, self._pem, self.problem = fresh, pem, ""
        self.count += 1
        return True

    async def follow(self) -> None:
        """Load the files whenever they change, for ever; also where their folder is another one.

        Raises:
            NoRoomError: the kernel cannot watch one more folder.
            PortError: a folder is not there.
        """
        # That of the clients' authority is read with the next certificate.
        async with aclosing(looks_at(self.files)) as looks:
            async for is_first in looks:
                if not is_first:
                    self.changed()
                self._try()

    def _try(self) -> None:
        before = self.problem
        try:
            if self.load():
                log.info("certificate", file=str(self.files[0]), served=True)
        except PortError as error:
            if self.problem != before:
                log.warning("certificate", problem=str(error))
        exposed = _exposed(self.files[1])
        if exposed and exposed != self._exposed:
            log.warning("certificate", problem=exposed, remedy="chmod o= it, or set defaultMode")
        self._exposed = exposed

    def _choose(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def _server_context(clients: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if clients is not None:
        try:
            context.load_verify_locations(clients)
        except (OSError, ValueError) as error:
            remedy = "it has to be the PEM certificate of an authority"
            raise PortError(f"{clients}: {error}", remedy) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _exposed(key: Path) -> str:
    """What to tell of a key that everybody on this machine may read."""
    try:
        mode = stat.S_IMODE(key.stat().st_mode)
    except OSError:
        return ""  # that it cannot be read is told already
    return f"{key}: everybody may read this key (mode {mode:04o})" if mode & 0o007 else ""


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise PortError(f"{file}: {error.strerror or error}", _REMEDY) from None
    if len(content) > _MOST_BYTES:
        raise PortError(f"{file}: larger than 1 MiB", _REMEDY)
    return content


def _identify(context: ssl.SSLContext, pem: bytes, where: Path) -> None:
    # OpenSSL reads a chain and its key from files only; this one is in memory, so that what was
    # read is what is served, whatever happens to the files meanwhile.
    memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(pem)
        # A key with a passphrase would be asked for at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{memory}", password=lambda: "")
    except (OSError, ValueError) as error:
        problem = f"{where}: cannot be used with its key: {error}"
        raise PortError(problem, _REMEDY) from None
    finally:
        os.close(memory)
