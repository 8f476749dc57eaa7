"""The memory manager and huge pages."""
