"""Pods that the agent runs itself, as processes or through a runtime that it tells to."""
