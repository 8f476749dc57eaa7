"""The topology manager: hints, their merge, policies and scopes."""
