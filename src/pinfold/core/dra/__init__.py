"""Dynamic Resource Allocation: classes as the objects of ``resource.k8s.io``, and back."""
