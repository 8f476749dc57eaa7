"""The podresources API: tells node agents which container has which resources, over gRPC."""

from pinfold.adapters.podresources.server import DEFAULT_SOCKET, serve_pod_resources

__all__ = ["DEFAULT_SOCKET", "serve_pod_resources"]
