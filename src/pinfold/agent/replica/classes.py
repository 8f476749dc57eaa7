"""One replica of ``pinfold classes serve``: it binds pods to raw names, the leader to nodes."""

from __future__ import annotations

import asyncio
from typing import Final

from pinfold.agent.replica.cluster_resources import ClusterResources
from pinfold.agent.replica.replica import Door, Parts, reporter, serve_parts
from pinfold.agent.replica.settings import ClassSettings, ReplicaSettings
from pinfold.cluster.classes.admission import ClassAdmission
from pinfold.cluster.classes.extending import Extender
from pinfold.cluster.classes.holdings import Holdings
from pinfold.cluster.classes.known import Known
from pinfold.cluster.classes.status import ClassStatus
from pinfold.cluster.leader_endpoint import Endpoint, lead_here
from pinfold.cluster.lease import Election
from pinfold.ports.kubernetes import Kubernetes
from pinfold.web.addresses import parsed_address
from pinfold.web.extender.app import LIMITS as EXTENDER_LIMITS
from pinfold.web.extender.app import VERBS, ExtenderConnection, make_extender
from pinfold.web.replica.figures import Figures, Requests
from pinfold.web.webhook.app import make_webhook
from pinfold.web.webhook.connection import LIMITS, WebhookConnection

PATH: Final = "/mutate"
METRICS: Final = "pinfold_classes"
EXTENDER: Final = "extender"
"""The port's name, and what is appended to the name of the service."""


async def serve(settings: ReplicaSettings, classes: ClassSettings) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends it at once.

    Raises:
        PortError: an address, a folder or a file of the settings cannot be used.
    """

    def parts(client: Kubernetes, figures: Figures) -> Parts:
        return _Classes(settings, classes, client, figures).parts()

    await serve_parts(settings, parts, METRICS)


class _Classes:
    def __init__(
        self,
        settings: ReplicaSettings,
        classes: ClassSettings,
        client: Kubernetes,
        figures: Figures,
    ) -> None:
        self._settings, self._classes = settings, classes
        self._client, self._figures = client, figures
        names = settings.names
        self._known = Known(client, reporter("classes"))
        self._admission = ClassAdmission(self._known)
        self._holdings = Holdings(client, reporter("pods"))
        self._election = Election(
            client, names.namespace, names.service, settings.identity, report=reporter("election")
        )
        self._extender = Extender(
            client,
            self._known,
            self._holdings,
            leads=lambda: self._election.leads,
            preference=classes.preference,
            report=reporter("bindings"),
        )
        self._status = ClassStatus(client, self._known, self._holdings, report=reporter("status"))
        self._published: ClusterResources | None = None
        if classes.cluster_resources is not None:
            self._published = ClusterResources(
                client, classes.cluster_resources, reporter("cluster resources")
            )
        figures.gauge(f"{METRICS}_leads", "1 where this replica leads.", self._leads)

    def parts(self) -> Parts:
        """What it serves and does."""
        reviews = Requests(self._figures, f"{METRICS}_review", "Admission reviews", ("pods",))
        asked = Requests(
            self._figures, f"{METRICS}_question", "Questions of a scheduler", VERBS, "verb"
        )
        return Parts(
            doors=[
                Door(
                    told="port",
                    address=self._settings.listen,
                    app=make_webhook({PATH: self._admission.decide}, reviews),
                    connection=WebhookConnection,
                    limits=LIMITS,
                    client_authority=self._settings.client_authority,
                ),
                Door(
                    told="extender_port",
                    address=self._classes.extender_listen,
                    app=make_extender(self._extender, asked),
                    connection=ExtenderConnection,
                    limits=EXTENDER_LIMITS,
                    client_authority=self._classes.extender_client_authority,
                ),
            ],
            work={
                "the classes": self._known.follow,
                "the lead": lambda: self._election.run(self._lead),
            },
            problems=self._admission.problems,
        )

    async def _lead(self) -> None:
        """What one replica does."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._extender.lead())
            tasks.create_task(self._status.run())
            if self._published is not None:
                tasks.create_task(self._published.run())
            if self._classes.extender_address:
                tasks.create_task(self._be_found())

    async def _be_found(self) -> None:
        names, listen = self._settings.names, self._classes.extender_listen
        await self._holdings.synced.wait()
        endpoint = Endpoint(
            names.namespace,
            f"{names.service}-{EXTENDER}",
            self._classes.extender_address,
            EXTENDER,
            parsed_address(listen)[1],
        )
        await lead_here(self._client, endpoint, reporter("extender"))

    def _leads(self) -> float:
        return float(self._election.leads)
