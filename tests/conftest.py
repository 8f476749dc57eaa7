"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# Speed is measured (make bench), never asserted: a busy machine must not fail a property.
settings.register_profile("house", deadline=None)
settings.load_profile("house")
