"""What is written reads back as it was, whichever YAML the reader takes it for."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.formats.yaml_documents import yaml_documents
from pinfold.formats.yaml_writing import written_yaml

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["y", "No", "on", "~", "null", "012", "0o7", "0x1f", "1e3", "1_0", "-1", ".5", "<<", "=", "- a"]
)
SCALARS = TEXTS | st.integers(-(2**63), 2**63) | st.booleans() | st.none()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_documents_read_back_as_they_were(documents: list[dict[str, object]]) -> None:
    text = written_yaml(documents)
    assert [one.content for one in yaml_documents(text)] == documents
    assert list(yaml.safe_load_all(text)) == documents


def test_what_is_there_twice_is_written_twice() -> None:
    shared = {"a": ["x"]}
    text = written_yaml([{"one": shared, "two": shared}])
    assert "&" not in text
    assert text == "one:\n  a:\n  - x\ntwo:\n  a:\n  - x\n"
