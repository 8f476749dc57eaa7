"""Keeps the webhook's own certificates: in a Secret, trusted by the API server, and in files.

Every replica does so.  What is written is a compare-and-swap, so it does not matter who is first.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.cluster.quota.certificates import Material, Rest, Trust, Write, next_step
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


class Names(Struct, frozen=True):
    """What belongs together: Secret and Service of a namespace, and the webhooks' configuration."""

    namespace: str
    secret: str
    service: str
    configuration: str

    @property
    def served(self) -> tuple[str, ...]:
        """The DNS names of the service; an API server asks for the first."""
        name = f"{self.service}.{self.namespace}.svc"
        return (name, f"{name}.cluster.local", f"{self.service}.{self.namespace}")


class CertificateKeeper:
    """Has the certificates made, trusted, placed and renewed; ``told`` hears of what is done."""

    def __init__(  # noqa: PLR0913 - its surroundings, one each
        self,
        kubernetes: Kubernetes,
        made: Certificates,
        names: Names,
        place: Place,
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
        self._placed = Material()

    async def run(self) -> None:
        """Keep them for ever; raises PortError where the API server cannot be asked."""
        while True:
            until = await self.settle()
            await asyncio.sleep(max(0.0, min(LOOK, until - self._clock())))

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
        if material.certificate and material != self._placed:
            await self._place(material.certificate, material.key)
            self._placed = material
        configuration = await self._configuration()
        trusted = [_bundle(one) for one in configuration.get("webhooks") or ()]
        found = next_step(self._made, material, trusted, self._names.served, self._clock())
        match found:
            case Write(wanted, why):
                self._told(f"written: {why}")
                await self._write(secret, wanted)
                return None
            case Trust(authorities):
                await self._trust(configuration, authorities)
                return None
            case Rest(until):
                return until

    async def _secret(self) -> Object | None:
        try:
            return await self._kubernetes.get(SECRETS, self._names.secret, self._names.namespace)
        except NotFoundError:
            return None

    async def _configuration(self) -> Object:
        name = self._names.configuration
        try:
            return await self._kubernetes.get(VALIDATING_WEBHOOKS, name)
        except NotFoundError:
            raise PortError(
                f"there is no ValidatingWebhookConfiguration {name}",
                "apply deploy/kubernetes/quota",
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

    async def _trust(self, configuration: Object, authorities: bytes) -> None:
        bundle = base64.b64encode(authorities).decode()
        webhooks = [
            {**one, "clientConfig": {**(one.get("clientConfig") or {}), "caBundle": bundle}}
            for one in configuration.get("webhooks") or ()
        ]
        await self._kubernetes.update(VALIDATING_WEBHOOKS, {**configuration, "webhooks": webhooks})
        self._told(f"trusted by {self._names.configuration}")


def _material(secret: Object | None) -> Material:
    data = (secret or {}).get("data") or {}
    return Material(**{field: _decoded(data.get(key)) for field, key in _FIELDS.items()})


def _bundle(webhook: Mapping[str, Any]) -> bytes:
    return _decoded((webhook.get("clientConfig") or {}).get("caBundle"))


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value or ""), validate=True)
    except (binascii.Error, ValueError):
        return b""
