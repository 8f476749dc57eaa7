"""Templates in the dialect of ``kubectl -o jsonpath``: text with paths into a document."""
