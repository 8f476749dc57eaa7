"""``pinfold quota``: limits on exclusive CPUs in a cluster."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import click

from pinfold.adapters.kubernetes.access import SERVICE_ACCOUNT, from_kubeconfig, in_cluster
from pinfold.cli.client import RefusedError
from pinfold.cli.output import InputError, input_errors
from pinfold.cluster.quota.certificate_keeper import Names
from pinfold.core.quota.claims import DEFAULT_DRIVER, ClaimRules
from pinfold.ports.errors import PortError


@click.group()
def quota() -> None:
    """Limit the exclusive CPUs of each namespace of a cluster."""


@quota.command()
@click.option(
    "--listen",
    metavar="[HOST]:PORT",
    default=":9443",
    show_default=True,
    help="Where API servers ask, over TLS.",
)
@click.option(
    "--health-listen",
    metavar="[HOST]:PORT",
    default=":8081",
    show_default=True,
    help="Where kubelets and Prometheus ask, in plain HTTP: /healthz, /readyz, /metrics.",
)
@click.option(
    "--certificates",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    default="/run/pinfold-quota/certificates",
    show_default=True,
    help="The folder with tls.crt and tls.key; they are read again when they change.",
)
@click.option(
    "--make-certificates",
    is_flag=True,
    help="Make an authority and certificates, keep them in the Secret NAME-certificates, renew "
    "them, and have them trusted by the ValidatingWebhookConfiguration NAME.",
)
@click.option(
    "--client-authority",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Answer only those with a certificate of this authority (PEM). "
    "Without it: whoever reaches it.",
)
@click.option(
    "--name",
    metavar="NAME",
    default="pinfold-quota",
    show_default=True,
    help="The Service, the ValidatingWebhookConfiguration and the Lease.",
)
@click.option(
    "--namespace",
    metavar="NAMESPACE",
    help="Where they are. Without it: that of the service account.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="How to reach the API server. Without it: as a pod of the cluster.",
)
@click.option(
    "--claims/--no-claims",
    default=True,
    show_default=True,
    help="Count claims of Dynamic Resource Allocation for CPUs (resource.k8s.io/v1).",
)
@click.option(
    "--claim-driver",
    metavar="DRIVER",
    default=DEFAULT_DRIVER,
    show_default=True,
    help="The driver that gives CPUs to claims.",
)
@click.option(
    "--claim-class",
    "claim_classes",
    metavar="CLASS",
    multiple=True,
    help="A DeviceClass of its devices; may be given several times.  [default: the driver's name]",
)
@click.option(
    "--claim-capacity",
    metavar="NAME",
    help="What a CPU is called in a device's capacity.  [default: DRIVER/cpu]",
)
@click.option(
    "--claim-devices-are-cpus",
    is_flag=True,
    help="Each device of the driver is one CPU, and a claim asks for a number of them.",
)
@click.option(
    "--drain",
    type=click.FloatRange(0, 3600),
    metavar="SECONDS",
    default=5,
    show_default=True,
    help="For how long it still answers once it is told to stop and is no longer ready.",
)
def serve(  # noqa: PLR0913 - the options, one each
    *,
    listen: str,
    health_listen: str,
    certificates: Path,
    make_certificates: bool,
    client_authority: Path | None,
    name: str,
    namespace: str | None,
    kubeconfig: Path | None,
    claims: bool,
    claim_driver: str,
    claim_classes: tuple[str, ...],
    claim_capacity: str | None,
    claim_devices_are_cpus: bool,
    drain: float,
) -> None:
    """Answer the API server's admission webhook, and keep the quotas' status, until SIGTERM.

    Several replicas may run: all of them answer, one keeps the status.
    """
    try:
        from pinfold.agent.quota import (  # noqa: PLC0415 - 170 ms, and it needs the extras
            QuotaSettings,
            identity_of,
            serve_quota,
        )
    except ModuleNotFoundError as error:
        raise InputError(
            f"pinfold quota serve needs {error.name}; install pinfold with its extras: "
            "pip install 'pinfold[agent,cluster]'"
        ) from None
    with input_errors(PortError):
        access = from_kubeconfig(kubeconfig) if kubeconfig else in_cluster()
        where = namespace or _own_namespace()
    rules = ClaimRules(
        claim_driver,
        claim_classes or (claim_driver,),
        claim_capacity or f"{claim_driver}/cpu",
        claim_devices_are_cpus,
    )
    settings = QuotaSettings(
        access=access,
        names=Names(where, f"{name}-certificates", name, name),
        identity=identity_of(os.environ.get("HOSTNAME") or socket.gethostname()),
        listen=listen,
        health_listen=health_listen,
        certificates=certificates.absolute(),
        makes_certificates=make_certificates,
        client_authority=client_authority,
        claims=rules if claims else None,
        drain=drain,
    )
    try:
        asyncio.run(serve_quota(settings))
    except PortError as error:
        raise RefusedError(0, str(error)) from None


def _own_namespace() -> str:
    file = SERVICE_ACCOUNT / "namespace"
    try:
        return file.read_text().strip()
    except OSError as error:
        raise PortError(f"{file}: {error.strerror or error}", "give --namespace") from None
