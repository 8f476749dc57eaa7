"""The kubelet's side of the device plugin API ``v1beta1``, and of the plugin watcher's registry."""

from pinfold.adapters.deviceplugin.messages import response_of, run_options
from pinfold.adapters.deviceplugin.plugin_client import PluginLimits
from pinfold.adapters.deviceplugin.server import DevicePluginServer

__all__ = ["DevicePluginServer", "PluginLimits", "response_of", "run_options"]
