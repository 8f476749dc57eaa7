"""Classes of resources in a cluster: what there is, who has it, and which pod gets what where."""
