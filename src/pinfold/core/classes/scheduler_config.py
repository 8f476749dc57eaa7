"""The piece of a scheduler's configuration by which it asks about pods with classes, and no others.

Source: ``KubeSchedulerConfiguration`` of ``kubescheduler.config.k8s.io/v1``, ``extenders``.  A
scheduler that is given no authority for an extender checks nothing, in all versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from pinfold.core.classes.names import class_resource

VERSIONS: Final = ("v1", "v1beta3", "v1beta2", "v1beta1")
TIMEOUT: Final = "5s"

WEIGHT: Final = 10
"""With 1 a whole preference for a node would be worth what one of the scheduler's own is, one of
which spreads pods; with this its half still outweighs several of them."""


class ExtenderTLS(Struct, frozen=True):
    """How a scheduler knows an extender, and how it is known; files are as the scheduler sees them.

    Attributes:
        authority: the file with the certificate of who has signed the extender's; "": it takes any.
        server_name: the name that the extender's certificate is for, whatever its address.
        certificate: the file with the scheduler's own, and ``key`` that of its key; "": none.
    """

    authority: str
    server_name: str
    certificate: str = ""
    key: str = ""


def scheduler_config(
    classes: Iterable[str], url: str, tls: ExtenderTLS, version: str = VERSIONS[0]
) -> dict[str, Any]:
    """A ``KubeSchedulerConfiguration`` with one extender.

    Args:
        classes: the names of all classes: a scheduler passes over what it is not told of.
        url: where the extender is.
        tls: how they know one another.
        version: of its API.
    """
    files = {
        "serverName": tls.server_name,
        "caFile": tls.authority,
        "certFile": tls.certificate,
        "keyFile": tls.key,
    }
    extender: dict[str, Any] = {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "weight": WEIGHT,
        "httpTimeout": TIMEOUT,
        "enableHTTPS": True,
        "tlsConfig": {name: text for name, text in files.items() if text}
        | ({} if tls.authority else {"insecure": True}),
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            {"name": class_resource(name), "ignoredByScheduler": True} for name in sorted(classes)
        ],
    }
    return {
        "apiVersion": f"kubescheduler.config.k8s.io/{version}",
        "kind": "KubeSchedulerConfiguration",
        "extenders": [extender],
    }
