"""``--node``: the same command at the agent of a node of a cluster."""

from __future__ import annotations

import functools
from typing import Any, cast

import click

from pinfold.cli.output import F

NAMESPACE = "pinfold"
"""Where the kustomizations and the chart have the agents, unless they were told otherwise."""


def agents_node_option(command: F) -> F:
    """``--node`` and how the cluster is reached, of a command that asks an agent and only reads.

    With ``--node`` the command itself is not called: the one in the agent's pod is.
    """

    @functools.wraps(command)
    def there_or_here(
        *args: Any,  # noqa: ANN401 - click's
        node: str | None,
        context: str | None,
        agents_namespace: str,
        verbose: bool,
        **options: Any,  # noqa: ANN401 - click's
    ) -> Any:  # noqa: ANN401 - click's
        if node is None:
            if context is not None or verbose:
                raise click.UsageError("--context and --verbose go with --node")
            return command(*args, **options)
        from pinfold.cli.options.agents_pod import AgentsPod  # noqa: PLC0415 - 5 ms

        AgentsPod.on(node, context, agents_namespace, verbose=verbose).run_the_same(
            getattr(options.get("output"), "template", ""), watches=bool(options.get("watch"))
        )
        return None

    for option in (
        click.option(
            "--verbose", is_flag=True, help="With --node: print the commands that are run for it."
        ),
        click.option(
            "--agents-namespace",
            metavar="NAMESPACE",
            default=NAMESPACE,
            show_default=True,
            envvar="PINFOLD_AGENTS_NAMESPACE",
            help="With --node: the namespace of the agents' pods.",
        ),
        click.option(
            "--context", metavar="NAME", help="With --node: the context of the kubeconfig."
        ),
        click.option(
            "--node",
            metavar="NAME",
            help="Ask the agent of this node of a cluster: kubectl exec runs the same command in "
            "its pod. Whoever has the right to do that is root on the node.",
        ),
    ):
        there_or_here = option(there_or_here)
    return cast("F", there_or_here)
