"""Names that DRA has room for: always the same ones, and never one for two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.dra.names import attribute_name, device_name
from pinfold.core.values.names import label_problems

TEXTS = st.text("aZ0-_./", max_size=70)


@given(TEXTS, TEXTS)
def test_two_properties_never_have_one_name(one: str, other: str) -> None:
    made = attribute_name(one, "a.io")
    assert len(made[1]) <= 32
    assert made[1].isidentifier()
    assert len(made[0]) <= 63
    assert (made == attribute_name(other, "a.io")) == (one == other)


def test_a_property_that_is_called_as_one_that_was_made_has_another_name() -> None:
    made = attribute_name("memory-size", "a.io")
    assert attribute_name(made[1], "a.io") != made
    device = device_name("GPU.0")
    assert device_name(device) != device


@given(TEXTS, TEXTS)
def test_devices_have_labels_and_no_two_have_one(one: str, other: str) -> None:
    assert list(label_problems(device_name(one))) == []
    assert (device_name(one) == device_name(other)) == (one == other)
