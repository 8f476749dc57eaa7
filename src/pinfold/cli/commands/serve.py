"""``pinfold serve``: show the node of the local agent in browsers."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import sys
import webbrowser
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

import click

from pinfold.cli.client import socket_option
from pinfold.cli.output import Refused, needs_extra
from pinfold.page.serving.settings import DEFAULT_LISTEN, TOKEN_FILE, PageSettings
from pinfold.ports.errors import PortError
from pinfold.web.addresses import parsed_address

if TYPE_CHECKING:
    from pinfold.page.serving.serving import Begun

_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,253}|\[[0-9A-Fa-f:.]+\]")


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Where browsers ask, in plain HTTP; port 0 takes one that is free. "
    "An address of the network has to be written out.",
)
@socket_option
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file of mode 0600 with the token that lets in; it is waited for. "
    f"Without it: {TOKEN_FILE} beside the socket, which is made.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="A name under which the page is opened, beside localhost; repeatable.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in a browser.")
def serve(
    *,
    listen: str,
    socket: str,
    token_file: Path | None,
    host_names: tuple[str, ...],
    opens: bool,
) -> None:
    """Show this machine's agent in a browser.

    The page shows who owns which CPU and why, live, and what happened before. It changes nothing.
    It needs a token, which is in the address that is printed on a terminal. SIGTERM or Ctrl-C ends
    it.
    """
    is_local = _is_local(listen)
    for name in host_names:
        if _NAME.fullmatch(name) is None:
            raise click.BadParameter(f"{name!r} is no name of a machine", param_hint="--host-name")
    agents = Path(socket).absolute()
    settings = PageSettings(
        socket=agents,
        listen=listen,
        token_file=(token_file or agents.parent / TOKEN_FILE).absolute(),
        makes_token=token_file is None,
        host_names=host_names,
    )
    with needs_extra("pinfold serve", "agent"):
        from pinfold.page.serving.serving import serve_page  # noqa: PLC0415 - 150 ms

    def begun(told: Begun) -> None:
        _tell(told, settings.token_file)
        if not is_local:
            click.echo(
                f"warning: whoever reaches {listen} may try tokens, and nothing is encrypted, not "
                "even the token: put something with TLS before it, or forward a port instead",
                err=True,
            )
        if opens:
            # A command line can be read by others: the secret in it is used up when they see it.
            address = f"{told.address}?token={told.ticket()}"
            # A browser in the terminal is waited for, and itself waits for the page.
            Thread(target=_open, args=(address,), name="browser", daemon=True).start()

    try:
        asyncio.run(serve_page(settings, begun))
    except PortError as error:
        raise Refused(str(error)) from None


def _is_local(listen: str) -> bool:
    """Whether only this machine can connect.

    Raises:
        click.BadParameter: that is no address, or is not said clearly.
    """
    try:
        host, _, _ = parsed_address(listen)
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except (PortError, ValueError):
        raise click.BadParameter(
            f"{listen!r}: must be an address and a port, such as {DEFAULT_LISTEN}; 0.0.0.0 is all "
            "of this machine's",
            param_hint="--listen",
        ) from None


def _tell(told: Begun, file: Path) -> None:
    """One line: where the page is; the token in it is for who sits here, and for no log."""
    if told.problem:
        click.echo(f"{told.address} lets nobody in yet: {told.problem}", err=True)
    elif sys.stdout.isatty():
        click.echo(f"{told.address}?token={told.token}")
    else:
        click.echo(f"{told.address} (the token is in {file})")
    sys.stdout.flush()


def _open(address: str) -> None:
    if not webbrowser.open(address):
        click.echo("there is no browser here: open the address in one yourself", err=True)
