"""``pinfold classes``: classes of devices in a cluster."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final

import click

from pinfold.adapters.kubernetes.files import ManifestError
from pinfold.adapters.kubernetes.manifests import read_manifests
from pinfold.agent.replica.cluster_resources import read_cluster_resources
from pinfold.agent.replica.settings import ClassSettings, ReplicaSettings
from pinfold.cli.options.replica import (
    EXTRAS,
    an_address,
    an_authority,
    replica_options,
    serve_until_stopped,
)
from pinfold.cli.output import input_errors, needs_extra, print_text
from pinfold.config.values import ConfigError
from pinfold.core.classes.placing import Preference
from pinfold.core.classes.scheduler_config import VERSIONS, ExtenderTLS, scheduler_config
from pinfold.formats.yaml_writing import written_yaml
from pinfold.ports.kubernetes import MUTATING_WEBHOOKS

EXTENDER: Final = "pinfold-classes-extender.pinfold-classes.svc"


def _of_ip(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    try:
        return str(ipaddress.ip_address(value)) if value else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _a_whole_path(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if value and not value.startswith("/"):
        raise click.BadParameter(f"{value!r}: must begin with /: the scheduler reads it")
    return value


@click.group()
def classes() -> None:
    """Give the pods of a cluster devices by portable names."""


@classes.command()
@replica_options(
    "pinfold-classes",
    MUTATING_WEBHOOKS,
    manifests="deploy/kubernetes/serve-classes",
    also=("extender",),
)
@click.option(
    "--extender-listen",
    metavar="[HOST]:PORT",
    default=":9444",
    show_default=True,
    callback=an_address,
    help="Where a scheduler asks, over TLS.",
)
@click.option(
    "--extender-address",
    metavar="ADDRESS",
    envvar="POD_IP",
    show_envvar=True,
    callback=_of_ip,
    help="Its address for a scheduler: the Service NAME-extender leads there while it leads. "
    "Without it: nobody writes where that leads.",
)
@click.option(
    "--extender-client-authority",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    callback=an_authority,
    help="Answer only schedulers with a certificate of this authority (PEM). "
    "Without it: whoever reaches it.",
)
@click.option(
    "--prefer",
    type=click.Choice([one.value for one in Preference]),
    default=Preference.PACK.value,
    show_default=True,
    help="Which nodes suit better: those with fewer devices left, or with more.",
)
@click.option(
    "--cluster-resources",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="ComputeResources that belong to no node: one replica publishes what this file says, "
    "whenever it changes.",
)
def serve(  # noqa: PLR0913 - the options, one each
    *,
    replica: ReplicaSettings,
    extender_listen: str,
    extender_address: str | None,
    extender_client_authority: Path | None,
    prefer: str,
    cluster_resources: Path | None,
) -> None:
    """Bind pods that ask for class.pinfold.dev/NAME to raw names and to nodes, until SIGTERM.

    Several replicas may run: all of them answer API servers, one answers schedulers and keeps
    the status of classes.
    """
    settings = ClassSettings(
        extender_listen=extender_listen,
        extender_address=extender_address or "",
        extender_client_authority=extender_client_authority,
        preference=Preference(prefer),
        cluster_resources=cluster_resources,
    )
    if cluster_resources is not None:
        with input_errors(ConfigError, prefix="--cluster-resources: "):
            read_cluster_resources(cluster_resources)
    with needs_extra("pinfold classes serve", EXTRAS):
        from pinfold.agent.replica import classes as serving  # noqa: PLC0415 - 170 ms

    serve_until_stopped(serving.serve(replica, settings))


@classes.command("scheduler-config")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--url",
    metavar="URL",
    default=f"https://{EXTENDER}",
    show_default=True,
    help="Where the extender is. A scheduler on the host needs the address of the service.",
)
@click.option(
    "--authority",
    metavar="FILE",
    default="",
    callback=_a_whole_path,
    help="The authority of the extender's certificate, as a file that the scheduler sees.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Instead of an authority: have the scheduler take any certificate. Whoever answers at "
    "that address then decides where pods with classes run.",
)
@click.option(
    "--server-name",
    metavar="NAME",
    default=EXTENDER,
    show_default=True,
    help="The name that the extender's certificate is for, whatever the URL says.",
)
@click.option(
    "--client-certificate",
    metavar="FILE",
    default="",
    callback=_a_whole_path,
    help="The scheduler's own certificate, as a file that it sees, where the extender has "
    "--extender-client-authority.",
)
@click.option(
    "--client-key",
    metavar="FILE",
    default="",
    callback=_a_whole_path,
    help="The key of that certificate.",
)
@click.option(
    "--api-version",
    "version",
    type=click.Choice(VERSIONS),
    default=VERSIONS[0],
    show_default=True,
    help="Of the scheduler's configuration: v1 since 1.25, v1beta1 until 1.22.",
)
def scheduler(  # noqa: PLR0913 - the options, one each
    *,
    files: tuple[str, ...],
    url: str,
    authority: str,
    insecure: bool,
    server_name: str,
    client_certificate: str,
    client_key: str,
    version: str,
) -> None:
    """Print the extender that a scheduler's configuration has to have, as YAML.

    FILE is a file or a folder with the ResourceClasses, or - for standard input: the scheduler
    asks about pods with these classes, and no others. Print it anew when there is another class.
    """
    if not url.startswith("https://"):
        problem = f"{url!r}: must begin with https://: the extender speaks TLS only"
        raise click.BadParameter(problem, param_hint="--url")
    if bool(authority) is insecure:
        raise click.UsageError(
            "give --authority, by which the scheduler knows the extender, or --insecure"
        )
    if bool(client_certificate) is not bool(client_key):
        raise click.UsageError("give both --client-certificate and --client-key")
    tls = ExtenderTLS(authority, server_name, client_certificate, client_key)
    with input_errors(ManifestError):
        found = read_manifests(files)
    names = [one.name for one in found.classes]
    if not names:
        raise click.UsageError("there is no ResourceClass in these files")
    print_text(written_yaml([scheduler_config(names, url, tls, version)]))
