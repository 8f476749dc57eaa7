"""The Node Resource Interface: a container runtime asks before it creates each container."""

from pinfold.adapters.nri.counters import MethodCount, PluginCounters
from pinfold.adapters.nri.plugin import DEFAULT_SOCKET, NriPlugin, PluginSettings

__all__ = ["DEFAULT_SOCKET", "MethodCount", "NriPlugin", "PluginCounters", "PluginSettings"]
