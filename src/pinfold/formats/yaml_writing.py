"""YAML that every reader takes for what it was, whichever YAML it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinfold.formats.yaml_documents import plain_value


def written_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """The documents as one stream, each after a line ``---`` where there are several.

    Texts that are something else to YAML 1.1 (``yes``, ``012``, ``1e3``) are quoted.
    """
    import yaml  # noqa: PLC0415 - 13 ms: not needed where manifests are JSON, and slow to import

    class Dumper(yaml.SafeDumper):
        """Repeats what occurs twice, instead of referring to it."""

        def ignore_aliases(self, data: object) -> bool:
            del data
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = '"' if plain_value(value) != value or not value.isprintable() else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump_all(
        documents,
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
        default_flow_style=False,
    )
