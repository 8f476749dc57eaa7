"""The policy options: one table, the kubelet's maturity, conflicts and words."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.kubelet.policy_options import (
    ALIGN_BY_SOCKET,
    CPU_MANAGER_OPTIONS,
    DISTRIBUTE_CPUS_ACROSS_CORES,
    DISTRIBUTE_CPUS_ACROSS_NUMA,
    FULL_PCPUS_ONLY,
    PREFER_ALIGN_CPUS_BY_UNCORECACHE,
    TOPOLOGY_MANAGER_OPTIONS,
    Maturity,
    OptionFamily,
    PolicyOptionError,
    StaticPolicyOptions,
    parse_go_bool,
)
from pinfold.core.kubelet.versions import RELEASES, KubeletVersion
from pinfold.core.machine.topology import CPUTopology

ALL_GATES = {"CPUManagerPolicyAlphaOptions": True, "CPUManagerPolicyBetaOptions": True}
CONFLICTS = [
    (FULL_PCPUS_ONLY, DISTRIBUTE_CPUS_ACROSS_CORES),
    (DISTRIBUTE_CPUS_ACROSS_NUMA, DISTRIBUTE_CPUS_ACROSS_CORES),
    (PREFER_ALIGN_CPUS_BY_UNCORECACHE, DISTRIBUTE_CPUS_ACROSS_CORES),
    (PREFER_ALIGN_CPUS_BY_UNCORECACHE, DISTRIBUTE_CPUS_ACROSS_NUMA),
]
FAMILIES = (CPU_MANAGER_OPTIONS, TOPOLOGY_MANAGER_OPTIONS)
NAMES = [option.name for option in CPU_MANAGER_OPTIONS.options]


def test_every_option_alone_is_taken() -> None:
    for name in NAMES:
        options = StaticPolicyOptions.parse({name: "true"}, ALL_GATES)
        on = [n for n in NAMES if getattr(options, n.replace("-", "_"))]
        assert on == [name]
    assert StaticPolicyOptions.parse({}) == StaticPolicyOptions()


def test_the_name_of_the_specification() -> None:
    options = StaticPolicyOptions.parse({"reject-non-smt-aligned": "true"})
    assert options == StaticPolicyOptions(full_pcpus_only=True)


@pytest.mark.parametrize("pair", list(combinations(NAMES, 2)))
def test_which_options_exclude_each_other(pair: tuple[str, str]) -> None:
    options = dict.fromkeys(pair, "true")
    conflict = next((c for c in CONFLICTS if set(c) == set(pair)), None)
    if conflict is None:
        StaticPolicyOptions.parse(options, ALL_GATES)
        return
    with pytest.raises(PolicyOptionError) as error:
        StaticPolicyOptions.parse(options, ALL_GATES)
    assert str(error.value) == (
        f"static policy options {conflict[0]} and {conflict[1]} can not be used at the same time"
    )


def test_an_option_that_is_off_excludes_nothing() -> None:
    StaticPolicyOptions.parse(
        {FULL_PCPUS_ONLY: "true", DISTRIBUTE_CPUS_ACROSS_CORES: "false"}, ALL_GATES
    )


@pytest.mark.parametrize("version", [one.version for one in RELEASES], ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.manager)
def test_gates_by_maturity(family: OptionFamily, version: KubeletVersion) -> None:
    for option in family.options:
        alpha = option.maturity.at(version) is Maturity.ALPHA
        beta = option.maturity.at(version) is Maturity.BETA
        for gates, allowed in (
            ({}, not alpha),
            ({family.alpha_gate: True}, True),
            ({family.beta_gate: False}, not alpha and not beta),
            ({family.alpha_gate: True, family.beta_gate: False}, not beta),
        ):
            if allowed:
                assert family.check_available(option.name, gates, version) is option
                continue
            level = "Alpha" if alpha else "Beta"
            with pytest.raises(PolicyOptionError) as error:
                family.check_available(option.name, gates, version)
            assert str(error.value) == (
                f"{family.manager} Policy {level}-level Options not enabled, "
                f'but option "{option.name}" provided'
            )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.manager)
def test_an_unknown_option_is_named(family: OptionFamily) -> None:
    with pytest.raises(PolicyOptionError) as error:
        family.check_available("full-pcpu", {})
    assert str(error.value) == f'unknown {family.manager} Policy option: "full-pcpu"'


@pytest.mark.parametrize(
    ("text", "value"),
    [(t, True) for t in ("1", "t", "T", "true", "TRUE", "True")]
    + [(f, False) for f in ("0", "f", "F", "false", "FALSE", "False")],
)
def test_booleans_are_those_of_go(*, text: str, value: bool) -> None:
    assert parse_go_bool("o", text) is value


@given(st.text(max_size=6).filter(lambda t: t.lower() not in {"1", "t", "true", "0", "f", "false"}))
def test_any_other_text_is_no_boolean(text: str) -> None:
    with pytest.raises(PolicyOptionError) as error:
        StaticPolicyOptions.parse({FULL_PCPUS_ONLY: text})
    assert str(error.value) == (
        f'bad value for option "full-pcpus-only": strconv.ParseBool: parsing "{text}": '
        "invalid syntax"
    )


def test_mixed_case_is_no_boolean() -> None:
    with pytest.raises(PolicyOptionError):
        parse_go_bool("o", "tRUE")


def test_align_by_socket_needs_a_fitting_machine_and_policy() -> None:
    options = StaticPolicyOptions.parse({ALIGN_BY_SOCKET: "true"}, ALL_GATES)
    fitting = CPUTopology.from_rows([(cpu, cpu, 0, cpu, 0) for cpu in range(2)])
    options.check(fitting, "restricted")
    with pytest.raises(PolicyOptionError) as error:
        options.check(fitting, "single-numa-node")
    assert str(error.value) == (
        "Topolgy manager single-numa-node policy is incompatible with "
        "CPUManager align-by-socket policy option"
    )
    more_sockets = CPUTopology.from_rows([(cpu, cpu, cpu, 0, 0) for cpu in range(2)])
    with pytest.raises(PolicyOptionError) as error:
        options.check(more_sockets, "none")
    assert str(error.value) == (
        "Align by socket is not compatible with hardware where number of sockets "
        "are more than number of NUMA"
    )
    StaticPolicyOptions().check(more_sockets, "single-numa-node")
