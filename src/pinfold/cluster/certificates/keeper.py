"""Keeps the webhook's own certificates: in a Secret, trusted by the API server, and in files.

Every replica does so.  What is written is a compare-and-swap, so it does not matter who is first.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.cluster.certificates.steps import Material, Rest, Trust, Write, next_step
from pinfold.ports.certificates import Certificates
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import (
    SECRETS,
    VALIDATING_WEBHOOKS,
    AlreadyExistsError,
    ConflictError,
    Kubernetes,
    NotFoundError,
    Object,
    Resource,
)

LOOK: Final = 60.0
"""Seconds after which it is seen that somebody else has changed the Secret or the configuration."""

_FIELDS: Final = {
    "authorities": "ca.crt",
    "authority_key": "ca.key",
    "certificate": "tls.crt",
    "key": "tls.key",
}

Place = Callable[[bytes, bytes], Awaitable[None]]
"""Puts a certificate and its key where the server reads them."""

Placed = Callable[[], tuple[bytes, bytes]]
"""The certificate and the key that are there now; empty where there are none."""


class Names(Struct, frozen=True):
    """What belongs together: Secret and Service of a namespace, and the webhooks' configurations.

    ``configurations`` are the kinds of these, all of them of one name; ``manifests`` is where
    there are some to apply; ``others`` are more services with the same certificate.
    """

    namespace: str
    secret: str
    service: str
    configuration: str
    configurations: tuple[Resource, ...] = (VALIDATING_WEBHOOKS,)
    manifests: str = "deploy/kubernetes/quota"
    others: tuple[str, ...] = ()

    @property
    def served(self) -> tuple[str, ...]:
        """The DNS names of the services; an API server asks for the first."""
        return tuple(
            f"{service}.{self.namespace}{suffix}"
            for service in (self.service, *self.others)
            for suffix in (".svc", ".svc.cluster.local", "")
        )


class CertificateKeeper:
    """Has the certificates made, trusted, placed and renewed; ``told`` hears of what is done."""

    def __init__(  # noqa: PLR0913 - its surroundings, one each
        self,
        kubernetes: Kubernetes,
        made: Certificates,
        names: Names,
        place: Place,
        placed: Placed,
        *,
        told: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kubernetes = kubernetes
        self._made = made
        self._names = names
        self._place = place
        self._told = told
        self._clock = clock
        self._placed = placed
        self._last = b"", b""
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Keep them for ever; raises PortError where the API server cannot be asked."""
        while True:
            self._woken.clear()
            until = await self.settle()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(LOOK, until - self._clock()))):
                    await self._woken.wait()

    def look(self) -> None:
        """Look now: something has happened to what was placed."""
        self._woken.set()

    async def settle(self) -> float:
        """Do all there is to do now; when there is something again, in seconds since the epoch.

        Raises:
            PortError: the API server refuses, or cannot be asked.
        """
        while True:
            try:
                until = await self._step()
            except (ConflictError, AlreadyExistsError):
                continue  # another replica was quicker: what it did is read
            if until is not None:
                return until

    async def _step(self) -> float | None:
        secret = await self._secret()
        material = _material(secret)
        # What is there is trusted, as it was trusted before it was written.
        served = material.certificate, material.key
        if material.certificate and served != self._placed():
            await self._place(*served)
            if served == self._last:
                self._told("put back: there was another certificate, or none")
            self._last = served
        configurations = {kind: await self._get(kind) for kind in self._names.configurations}
        trusted = [bundle for one in configurations.values() for bundle in _bundles(one)]
        found = next_step(self._made, material, trusted, self._names.served, self._clock())
        match found:
            case Write(wanted, why):
                self._told(f"written: {why}")
                await self._write(secret, wanted)
                return None
            case Trust(authorities):
                for kind, one in configurations.items():
                    if any(bundle != authorities for bundle in _bundles(one)):
                        await self._trust(kind, one, authorities)
                return None
            case Rest(until):
                return until

    async def _secret(self) -> Object | None:
        try:
            return await self._kubernetes.get(SECRETS, self._names.secret, self._names.namespace)
        except NotFoundError:
            return None

    async def _get(self, kind: Resource) -> Object:
        name = self._names.configuration
        try:
            return await self._kubernetes.get(kind, name)
        except NotFoundError:
            raise PortError(
                f"there is no {kind.kind} {name}", f"apply {self._names.manifests}"
            ) from None

    async def _write(self, secret: Object | None, material: Material) -> None:
        data = {
            key: base64.b64encode(getattr(material, field)).decode()
            for field, key in _FIELDS.items()
        }
        if secret is None:
            metadata = {"name": self._names.secret, "namespace": self._names.namespace}
            about = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
            await self._kubernetes.create(SECRETS, {**about, "metadata": metadata, "data": data})
        else:
            kept = secret.get("data") or {}
            await self._kubernetes.update(SECRETS, {**secret, "data": {**kept, **data}})

    async def _trust(self, kind: Resource, configuration: Object, authorities: bytes) -> None:
        bundle = base64.b64encode(authorities).decode()
        webhooks = [
            {**one, "clientConfig": {**(one.get("clientConfig") or {}), "caBundle": bundle}}
            for one in configuration.get("webhooks") or ()
        ]
        await self._kubernetes.update(kind, {**configuration, "webhooks": webhooks})
        self._told(f"trusted by {self._names.configuration}")


def _material(secret: Object | None) -> Material:
    data = (secret or {}).get("data") or {}
    return Material(**{field: _decoded(data.get(key)) for field, key in _FIELDS.items()})


def _bundles(configuration: Mapping[str, Any]) -> list[bytes]:
    webhooks = configuration.get("webhooks") or ()
    return [_decoded((one.get("clientConfig") or {}).get("caBundle")) for one in webhooks]


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value or ""), validate=True)
    except (binascii.Error, ValueError):
        return b""
