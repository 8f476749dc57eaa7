"""Tests of the guardian."""
