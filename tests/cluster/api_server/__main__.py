"""``python -m tests.cluster.api_server --port N``: an API server to point kubectl at."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path

import yaml

from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running


def kubeconfig(api: ApiServer, file: Path, authority: Path | None = None, token: str = "") -> Path:
    """Write one that leads to a server."""
    cluster = {"server": api.url} | ({"certificate-authority": str(authority)} if authority else {})
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "double",
        "contexts": [{"name": "double", "context": {"cluster": "double", "user": "double"}}],
        "clusters": [{"name": "double", "cluster": cluster}],
        "users": [{"name": "double", "user": {"token": token} if token else {}}],
    }
    file.write_text(yaml.safe_dump(document))
    return file


async def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.cluster.api_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--kubeconfig", type=Path, help="written, for kubectl")
    parser.add_argument("--certificate", type=Path, help="PEM; with --key: serve https")
    parser.add_argument("--key", type=Path)
    parser.add_argument("--authority", type=Path, help="PEM; for the kubeconfig")
    parser.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAMESPACE/NAME=URL",
        help="where the service of a webhook is",
    )
    given = parser.parse_args()
    api = ApiServer(services=dict(one.split("=", 1) for one in given.service))
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with running(api, given.port, given.certificate, given.key):
        if given.kubeconfig:
            kubeconfig(api, given.kubeconfig, given.authority)
        print(api.url, flush=True)  # noqa: T201 - whoever has started it waits for that
        await ended.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
