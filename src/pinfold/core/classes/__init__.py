"""Classes of resources: which of a node's devices a portable name stands for."""
