"""What the commands share that serve a cluster: how a replica is reached, and what it is called."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from pinfold.adapters.kubernetes.access import (
    SERVICE_ACCOUNT,
    Access,
    in_cluster,
    is_in_cluster,
)
from pinfold.adapters.kubernetes.kubeconfig import from_kubeconfig
from pinfold.agent.replica.settings import ReplicaSettings
from pinfold.cli.client import Seconds
from pinfold.cli.output import InputError, Refused, input_errors
from pinfold.cluster.certificates.keeper import Names
from pinfold.core.values.names import label_problems
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import VALIDATING_WEBHOOKS, Resource
from pinfold.web.addresses import parsed_address

F = TypeVar("F", bound=Callable[..., Any])

EXTRAS: Final = "agent,cluster"
"""Extras of the package that a replica needs."""


def replica_options(
    default_name: str, *configurations: Resource, manifests: str, also: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a replica; the command has them as ``replica``, a ReplicaSettings.

    Args:
        default_name: what it is called where nobody says.
        configurations: the webhooks' configurations that trust its certificate.
        manifests: where those are.
        also: what is appended to its name for further services with the same certificate.
    """
    kinds = configurations or (VALIDATING_WEBHOOKS,)
    shown = " and the ".join(f"{kind.kind} NAME" for kind in kinds)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def taken(  # noqa: PLR0913 - the options, one each
            *,
            listen: str,
            health_listen: str,
            certificates: Path,
            make_certificates: bool,
            client_authority: Path | None,
            name: str,
            namespace: str | None,
            kubeconfig: Path | None,
            drain: float,
            **others: object,
        ) -> None:
            access = _access(kubeconfig)
            where = namespace or _own_namespace(kubeconfig, access)
            settings = ReplicaSettings(
                access=access,
                names=Names(
                    *(where, f"{name}-certificates", name, name, kinds, manifests),
                    tuple(f"{name}-{one}" for one in also),
                ),
                identity=_identity_of(os.environ.get("HOSTNAME") or socket.gethostname()),
                listen=listen,
                health_listen=health_listen,
                certificates=certificates.absolute(),
                makes_certificates=make_certificates,
                client_authority=client_authority,
                drain=drain,
            )
            command(replica=settings, **others)

        for option in reversed(_options(default_name, shown)):
            taken = option(taken)
        return taken

    return decorate


def _options(name: str, trusted_by: str) -> list[Callable[[F], F]]:
    return [
        click.option(
            "--listen",
            metavar="[HOST]:PORT",
            default=":9443",
            show_default=True,
            callback=an_address,
            help="Where API servers ask, over TLS.",
        ),
        click.option(
            "--health-listen",
            metavar="[HOST]:PORT",
            default=":8081",
            show_default=True,
            callback=an_address,
            help="Where kubelets and Prometheus ask, in plain HTTP: /healthz, /readyz, /metrics.",
        ),
        click.option(
            "--certificates",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="DIR",
            default=f"/run/{name}/certificates",
            show_default=True,
            help="The folder with tls.crt and tls.key; they are read again when they change.",
        ),
        click.option(
            "--make-certificates",
            is_flag=True,
            help="Make an authority and certificates, keep them in the Secret NAME-certificates, "
            f"renew them, and have them trusted by the {trusted_by}.",
        ),
        click.option(
            "--client-authority",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            metavar="FILE",
            callback=an_authority,
            help="Answer only those with a certificate of this authority (PEM). "
            "Without it: whoever reaches it.",
        ),
        click.option(
            "--name",
            metavar="NAME",
            default=name,
            show_default=True,
            callback=_label,
            help=f"The Service, the {trusted_by.replace(' NAME', '')} and the Lease.",
        ),
        click.option(
            "--namespace",
            metavar="NAMESPACE",
            callback=_label,
            help="Where they are. Without it: that of the service account, or of the kubeconfig's "
            "context.",
        ),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="How to reach the API server. Without it: as a pod of the cluster.",
        ),
        click.option(
            "--drain",
            type=Seconds(0, 3600),
            metavar="SECONDS",
            default=5,
            show_default=True,
            help="For how long it still answers once it is told to stop and is no longer ready.",
        ),
    ]


def serve_until_stopped(serving: Coroutine[None, None, None]) -> None:
    """Run a replica; what cannot be had ends it with one line.

    Args:
        serving: what a ``serve`` of ``pinfold.agent.replica`` gives, which is imported when it is
            called and not with the command: it takes 170 ms, and needs :data:`EXTRAS`.
    """
    try:
        asyncio.run(serving)
    except PortError as error:
        raise Refused(str(error)) from None


def _identity_of(host: str) -> str:
    """A name for this process that no other one has, nor a later one of the same pod."""
    return f"{host}_{os.getpid()}_{time.time_ns():x}"


def _access(kubeconfig: Path | None) -> Access:
    if kubeconfig is None and not is_in_cluster():
        raise click.UsageError("this is no pod of a cluster: give --kubeconfig FILE")
    with input_errors(PortError):
        return from_kubeconfig(kubeconfig) if kubeconfig else in_cluster()


def _own_namespace(kubeconfig: Path | None, access: Access) -> str:
    if access.namespace:
        return access.namespace
    if kubeconfig:
        raise click.UsageError(f"{kubeconfig}: its context has no namespace: give --namespace NAME")
    file = SERVICE_ACCOUNT / "namespace"
    try:
        return file.read_text().strip()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error} (give --namespace NAME)") from None


def an_address(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Refuse what is no ``[HOST]:PORT``; for the callback of an option."""
    try:
        parsed_address(value)
    except PortError as error:
        raise click.BadParameter(str(error)) from None
    return value


def _label(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    for problem in label_problems(value) if value is not None else ():
        raise click.BadParameter(f"{value!r}: {problem}")
    return value


def an_authority(
    _context: click.Context, _option: click.Parameter, value: Path | None
) -> Path | None:
    """Refuse a file without the certificate of an authority; for the callback of an option."""
    if value is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(value)
        except (OSError, ValueError):
            raise click.BadParameter(
                f"{value}: it has to be the PEM certificate of an authority"
            ) from None
    return value
