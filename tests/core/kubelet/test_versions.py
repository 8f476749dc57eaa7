"""Versions of the kubelet, and the tables by version."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.kubelet.feature_gates import FEATURE_GATES, check_feature_gates, gate_enabled
from pinfold.core.kubelet.policy_options import CPU_MANAGER_OPTIONS, TOPOLOGY_MANAGER_OPTIONS
from pinfold.core.kubelet.version_rules import DEVICE_HINTS_BY_DEVICES, VERSION_RULES
from pinfold.core.kubelet.versions import (
    DEFAULT_VERSION,
    RELEASES,
    V1_34,
    V1_35,
    V1_36,
    V1_37,
    KubeletVersion,
    KubeletVersionError,
    named_version,
)
from tests.roots import SHARED

RECORDED = SHARED / "vectors" / "1.36" / "gates_and_options.json"


def version_of(text: str) -> KubeletVersion:
    return named_version(text).version


@pytest.mark.parametrize(
    ("text", "version", "remark"),
    [
        ("1.34", V1_34, ""),
        ("v1.35", V1_35, ""),
        ("1.36", V1_36, ""),
        (" v1.35.3 ", KubeletVersion(35, 3), ""),
        ("v1.36.2+k3s1", V1_36, ""),
        ("v1.34.2-gke.1283", KubeletVersion(34, 2), ""),
        ("v1.36.0-alpha.1+0123abc", KubeletVersion(36, 0), ""),
        ("1.37", V1_37, "read from proposals, not recorded"),
        ("1.40.1", V1_37, "kubelet 1.40 is not known yet"),
        ("2.0", V1_37, "kubelet 2.0 is not known yet"),
    ],
)
def test_versions_are_read_as_people_and_kubelets_write_them(
    text: str, version: KubeletVersion, remark: str
) -> None:
    named = named_version(text)
    assert named.version == version
    assert remark in named.remark
    assert bool(remark) == bool(named.remark)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.x",
        "latest",
        "1.36.",
        "1.36.2.1",
        "v1.36 2",
        "1" * 99,
        "01.36",
        "1.036",
        "\uff11.36",
        "\u0661.\u0663\u0666",
    ],
)
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(KubeletVersionError, match=r"known are 1\.34, 1\.35, 1\.36, 1\.37"):
        named_version(text)


@pytest.mark.parametrize("text", ["1.33", "v1.18.4", "0.40"])
def test_what_is_older_than_all_is_refused(text: str) -> None:
    with pytest.raises(KubeletVersionError, match="older than all that are known"):
        named_version(text)


@given(st.text(max_size=30))
def test_any_text_is_a_version_or_refused(text: str) -> None:
    try:
        version = version_of(text)
    except KubeletVersionError:
        return
    assert V1_34.minor <= version.minor <= V1_37.minor


def test_the_default_is_the_newest_that_is_recorded() -> None:
    assert DEFAULT_VERSION == V1_36
    assert [str(one.version) for one in RELEASES if not one.is_recorded] == ["1.37"]


def test_a_rule_that_came_with_patches_holds_from_these_on() -> None:
    holds = [
        version.full
        for version in (
            *(
                KubeletVersion(minor, patch)
                for minor in (34, 35, 36)
                for patch in (0, 1, 2, 5, 6, 9)
            ),
            V1_37,
        )
        if DEVICE_HINTS_BY_DEVICES.at(version)
    ]
    assert holds == ["1.35.6", "1.35.9", "1.36.2", "1.36.5", "1.36.6", "1.36.9", "1.37.0"]
    assert len({rule.slug for rule in VERSION_RULES}) == len(VERSION_RULES)


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded tables are not here")
def test_gates_and_options_are_those_of_the_registration_tables() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert {gate.name for gate in FEATURE_GATES} == set(recorded["feature_gates"])
    for gate in FEATURE_GATES:
        for full, row in recorded["feature_gates"][gate.name].items():
            spec = gate.at(version_of(full))
            found = spec and {
                "default": spec.default,
                "locked": spec.locked,
                "maturity": {"stable": "GA"}.get(spec.maturity.value, spec.maturity.value),
            }
            assert found == row, (gate.name, full)
    for family, key in (
        (CPU_MANAGER_OPTIONS, "cpu_manager"),
        (TOPOLOGY_MANAGER_OPTIONS, "topology_manager"),
    ):
        rows = recorded["policy_options"][key]
        assert {option.name for option in family.options} == set(rows)
        for option in family.options:
            for full, maturity in rows[option.name].items():
                value = option.maturity.at(version_of(full)).value
                assert {"stable": "GA"}.get(value, value) == maturity, (option.name, full)


def test_a_gate_that_a_version_does_not_have_is_off() -> None:
    name = "PodLevelResourceManagers"
    on = {name: True}
    assert not gate_enabled(name, on, V1_35)
    assert gate_enabled(name, on, V1_36)
    assert not gate_enabled(name, {}, V1_36)
    assert gate_enabled(name, {"AllAlpha": True}, V1_36)
    assert not gate_enabled(name, {}, V1_37)
    assert gate_enabled(name, {"AllBeta": True}, V1_37)
    with pytest.raises(ValueError, match="unrecognized feature gate: PodLevelResourceManagers"):
        check_feature_gates(on, V1_34)
    check_feature_gates(on, V1_36)
    with pytest.raises(ValueError, match="unrecognized feature gate: MemoryManager"):
        check_feature_gates({"MemoryManager": True}, V1_36)
    check_feature_gates({"MemoryManager": True}, V1_35)
