"""``pinfold schema``: what the documents look like that Pinfold prints and serves."""

from __future__ import annotations

import click

from pinfold.cli.output import InputError, print_json
from pinfold.documents.schemas import DOCUMENTS, json_schema

OPENAPI = "openapi"


@click.command()
@click.argument("name", required=False)
def schema(name: str | None) -> None:
    """Print the JSON Schema of a document.

    Without a NAME it lists the documents. The name openapi stands for the OpenAPI document of the
    agent's local API.
    """
    if name is None:
        for known, published in DOCUMENTS.items():
            click.echo(f"{known:<16} {published.where.replace('`', '')}")
        click.echo(f"{OPENAPI:<16} the local API, as OpenAPI 3.1, for those who ask it themselves")
    elif name == OPENAPI:
        from pinfold.web.openapi import openapi_document  # noqa: PLC0415 - 0.8 ms

        print_json(openapi_document())
    elif name in DOCUMENTS:
        print_json(json_schema(name))
    else:
        known = ", ".join((*DOCUMENTS, OPENAPI))
        raise InputError(f"there is no document {name!r}; there are {known}")
