"""One replica of ``pinfold quota serve``: the webhook, and what keeps the quotas."""

from __future__ import annotations

from pinfold.agent.replica.replica import Door, Parts, reporter, serve_parts
from pinfold.agent.replica.settings import ReplicaSettings
from pinfold.cluster.lease import Election
from pinfold.cluster.quota.admission import Admission
from pinfold.cluster.quota.charging import Charging
from pinfold.cluster.quota.keeping import keep_quotas
from pinfold.cluster.quota.known import Quotas
from pinfold.cluster.quota.rules import QuotaRules
from pinfold.cluster.quota.status import QuotaStatus
from pinfold.core.quota.claims import ClaimRules
from pinfold.ports.kubernetes import Kubernetes
from pinfold.web.replica.figures import Figures, Requests
from pinfold.web.webhook.app import PATH, make_webhook
from pinfold.web.webhook.connection import LIMITS, WebhookConnection

RESOURCES = ("pods", "pods/resize", "resourceclaims", "resourceclaimtemplates")
"""What the webhook is asked about."""


async def serve(settings: ReplicaSettings, rules: QuotaRules) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends it at once.

    Args:
        settings: how it is run.
        rules: what is counted.

    Raises:
        PortError: an address, a folder or a file of the settings cannot be used.
    """

    def parts(client: Kubernetes, figures: Figures) -> Parts:
        names, claims = settings.names, rules.claims
        quotas = Quotas(client, reporter("quotas"), rules.patience)
        status = QuotaStatus(
            client,
            quotas,
            claims=claims,
            report=reporter("status"),
            patience=rules.patience,
            heeds_opt_out=rules.heeds_opt_out,
        )
        election = Election(
            client, names.namespace, names.service, settings.identity, report=reporter("election")
        )
        charging = Charging(client, quotas, claims=claims)
        decide = Admission(
            charging, claims or ClaimRules(), heeds_opt_out=rules.heeds_opt_out
        ).decide
        requests = Requests(figures, "pinfold_quota_review", "Admission reviews", RESOURCES)
        webhook = Door(
            told="port",
            address=settings.listen,
            app=make_webhook({PATH: decide}, requests),
            connection=WebhookConnection,
            limits=LIMITS,
            client_authority=settings.client_authority,
        )
        return Parts(
            doors=[webhook],
            work={"the quotas": lambda: keep_quotas(quotas, status, election)},
            problems=lambda: [*charging.problems(), *status.problems()],
        )

    await serve_parts(settings, parts, "pinfold_quota")
