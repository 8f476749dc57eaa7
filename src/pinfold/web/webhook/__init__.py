"""The HTTP of an admission webhook: reviews, and answers that are no decisions."""
