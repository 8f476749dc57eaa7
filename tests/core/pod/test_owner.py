"""The workloads that pods are of, and how users name them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.pod.owner import KIND_OF, PodOwner, PodsName, owners_of

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
)


@pytest.mark.parametrize(
    ("text", "kind", "full_name"),
    [
        ("web", "Pod", "web"),
        ("team/web", "Pod", "team/web"),
        ("pod/web", "Pod", "web"),
        ("po/team/web", "Pod", "team/web"),
        ("sts/db", "StatefulSet", "db"),
        ("Deployment/team/web", "Deployment", "team/web"),
    ],
)
def test_names_are_read_as_users_of_kubectl_write_them(
    text: str, kind: str, full_name: str
) -> None:
    name = PodsName.parse(text)
    assert (name.kind, name.full_name) == (kind, full_name)


@given(st.sampled_from(sorted(set(KIND_OF.values()))), st.sampled_from([None, "team"]))
def test_a_name_that_is_shown_can_be_given(kind: str, namespace: str | None) -> None:
    name = PodsName(kind, namespace, "web")
    assert PodsName.parse(name.text) == name


@pytest.mark.parametrize("text", ["", "pod/", "/web", "pod//web", "a/b/c", "pod/a/b/c"])
def test_half_a_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no pod"):
        PodsName.parse(text)


def test_a_namespace_that_is_said_wins() -> None:
    assert PodsName.parse("a/web", "b").namespace == "a"
    assert PodsName.parse("web", "b").namespace == "b"


def test_a_name_of_another_namespace_is_another_workload() -> None:
    owners = (PodOwner("Deployment", "team", "web"),)
    assert PodsName.parse("deploy/web").has(owners)
    assert PodsName.parse("deploy/team/web").has(owners)
    assert not PodsName.parse("deploy/other/web").has(owners)
    assert not PodsName.parse("sts/web").has(owners)


@given(_JSON, _JSON)
def test_any_object_is_taken(references: Any, labels: Any) -> None:
    metadata = {"ownerReferences": references, "labels": labels}
    for owner in owners_of("default", {"metadata": metadata}):
        assert owner.namespace == "default"
        names = [one["name"] for one in references if isinstance(one, dict) and "name" in one]
        assert any(name == owner.name or name.startswith(f"{owner.name}-") for name in names)
