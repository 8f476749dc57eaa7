"""What a manifest may say of a pod: read, with defaults and refusals of the API server."""
