"""Containers as plain processes: the runtime of a machine that has no container runtime."""

from pinfold.adapters.process.runtime import ProcessRuntime

__all__ = ["ProcessRuntime"]
