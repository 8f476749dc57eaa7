"""A reader of the kubelet's podresources API: which devices it has given to which container."""

from pinfold.adapters.podresources_client.client import PodResourcesClient

__all__ = ["PodResourcesClient"]
