"""``pinfold serve``: the page of the local agent's node."""

from pinfold.cli.commands.serve.command import serve

__all__ = ["serve"]
