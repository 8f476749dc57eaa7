"""An API server for tests: real HTTP, lists, watches, patches, custom resources and webhooks."""
