"""The pods of a node: replicas that are alike in one row, and the rows as text and as a picture."""
