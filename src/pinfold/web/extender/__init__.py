"""The HTTP of a scheduler extender."""
