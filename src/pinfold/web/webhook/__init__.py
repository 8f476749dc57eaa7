"""The HTTP of an admission webhook: reviews, health, metrics, certificates."""
