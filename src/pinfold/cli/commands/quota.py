"""``pinfold quota``: limits on exclusive CPUs in a cluster."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from pinfold.agent.replica.settings import ReplicaSettings
from pinfold.cli.client import Seconds
from pinfold.cli.options.claims import claim_options, claim_rules
from pinfold.cli.options.replica import EXTRAS, replica_options, serve_until_stopped
from pinfold.cli.output import needs_extra
from pinfold.cluster.hearing import PATIENCE
from pinfold.cluster.quota.rules import QuotaRules


@click.group()
def quota() -> None:
    """Limit the exclusive CPUs of each namespace of a cluster.

    Where an agent runs the pods itself, ResourceQuotas come by pinfold apply, as pods do.
    """


@quota.command()
@replica_options("pinfold-quota", manifests="deploy/kubernetes/quota")
@click.option(
    "--claims/--no-claims",
    default=True,
    show_default=True,
    help="Count claims of Dynamic Resource Allocation for CPUs (resource.k8s.io/v1).",
)
@claim_options
@click.option(
    "--heed-opt-out/--ignore-opt-out",
    "heeds_opt_out",
    default=True,
    show_default=True,
    help='Count 0 for what says exclusive-cpus.pinfold.dev: "false". Heeded by nodes with '
    "Pinfold's agent alone: where others run pods, one line escapes every quota; ignore it there.",
)
@click.option(
    "--watch-patience",
    "patience",
    type=Seconds(1, 3600),
    metavar="SECONDS",
    default=PATIENCE,
    show_default=True,
    help="For how long what a watch has told is taken for what is: then the quotas of a namespace "
    "are read before a pod is let by, and a replica whose watch fails is not ready.",
)
def serve(
    *,
    replica: ReplicaSettings,
    claims: bool,
    heeds_opt_out: bool,
    patience: float,
    **of_claims: Any,  # noqa: ANN401 - the options of claims
) -> None:
    """Answer the API server's admission webhook, and keep the quotas' status, until SIGTERM.

    Several replicas may run: all of them answer, one keeps the status.
    """
    context = click.get_current_context()
    for name in of_claims if not claims else ():
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = next(one.opts[0] for one in context.command.params if one.name == name)
            raise click.UsageError(f"{option} says which claims count; with --no-claims none do")
    rules = QuotaRules(
        claims=claim_rules(of_claims) if claims else None,
        heeds_opt_out=heeds_opt_out,
        patience=patience,
    )
    with needs_extra("pinfold quota serve", EXTRAS):
        from pinfold.agent.replica import quota as serving  # noqa: PLC0415 - 170 ms

    serve_until_stopped(serving.serve(replica, rules))
