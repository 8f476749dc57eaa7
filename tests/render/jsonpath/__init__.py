"""Tests of the report's page and its plots."""
