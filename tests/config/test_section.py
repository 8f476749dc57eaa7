"""The section ``pinfold`` of a file: our own policies, their options, and what is wrong there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pinfold.config.kubelet import ConfigError, LoadedConfig, load_kubelet_config
from pinfold.config.section import AgentSection, as_written
from pinfold.config.settings import override
from pinfold.config.values import SettingError
from pinfold.core.kubelet.own_policies import OWN_POLICIES

Load = Callable[[str], LoadedConfig]
OWN = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
reservedSystemCPUs: '0'
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def from_text(text: str) -> LoadedConfig:
        file = tmp_path / "kubelet.yaml"
        file.write_text(text)
        return load_kubelet_config(str(file))

    return from_text


def test_options_of_dynamic_need_the_policy(load: Load) -> None:
    section = "pinfold: {dynamic: {rebalancePeriod: 5m, makeRoom: true}}\n"
    dynamic = load(f"{OWN}cpuManagerPolicy: dynamic\n{section}")
    assert dynamic.notes == ()
    assert dynamic.config.own is not None
    assert dynamic.config.own.dynamic.period_seconds == 300.0
    (note,) = load(f"{OWN}cpuManagerPolicy: static\n{section}").notes
    assert note.endswith("pinfold.dynamic has no effect: cpuManagerPolicy is static")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("rebalancePeriod: 5", "must be never, or seconds, minutes or hours such as 5m, not 5"),
        ("rebalancePeriod: 0s", "such as 5m, not '0s'"),
        ("rebalancePeriod: 5d", "such as 5m, not '5d'"),
        ("movesPerHour: -1", "movesPerHour: must be a whole number from 0 to 3600, not -1"),
        ("mostMoved: 0", "mostMoved: must be a whole number from 1 to 100, not 0"),
        ("makeRoom: 1", "dynamic.makeRoom: must be true or false, not 1"),
    ],
)
def test_bad_options_of_dynamic(load: Load, options: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{OWN}cpuManagerPolicy: dynamic\npinfold: {{dynamic: {{{options}}}}}\n")
    assert words in str(caught.value)


@pytest.mark.parametrize("policy", OWN_POLICIES)
def test_own_policies_need_the_section(load: Load, policy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{OWN}cpuManagerPolicy: {policy}\n")
    words = f'cpuManagerPolicy: unknown policy: "{policy}"; it is none or static; {policy} needs'
    assert words in str(caught.value)
    loaded = load(f"{OWN}cpuManagerPolicy: {policy}\npinfold:\n")
    assert loaded.config.cpu_manager_policy == policy
    assert loaded.config.gives_exclusive_cpus
    assert loaded.notes == ()
    # A flag is read as its file is.
    plain, own = load(OWN), load(f"{OWN}pinfold: {{}}\n")
    assert override(own.config, {"cpu_manager_policy": policy}).cpu_manager_policy == policy
    with pytest.raises(SettingError, match=f"{policy} needs a section pinfold in the file"):
        override(plain.config, {"cpu_manager_policy": policy})


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            "dynamics: {}",
            "pinfold: Object contains unknown field `dynamics` (did you mean dynamic?)",
        ),
        (
            "dynamic: {rebalance: true}",
            "unknown field `rebalance` - at `$.dynamic` (fields: rebalancePeriod, ",
        ),
        ("dynamic: true", "Expected `object`, got `bool` - at `$.dynamic` (fields: "),
        ("cache: {mount: cpd}", "cache.mount: must be never, plain, or mount options such as cdp"),
        ("cache: {classes: {a: {l3: '0'}}}", "cache.classes.a.l3: must be ways or a share of them"),
        ("cache: {classes: {a: {}, b: {l4: 1}}}", "unknown field `l4` - at `$.cache.classes.b` (f"),
        ("cache: {classes: {a: {}, b: 1}}", "got `int` - at `$.cache.classes.b` (fields: l3, "),
        ("cache: {classes: {A: {}}}", "cache.classes: each key must be the name of a class, such"),
        ("cache: {classes: {none: {}}}", "none is no name of a class: pods say it to have none"),
        ("cache: {exclusive: gold}", "exclusive: there is no class gold, there is none"),
        ("runtime: docker", "runtime: must be process, cri or nri, not 'docker'"),
        ("isolatedCPUs: {use: 1}", "isolatedCPUs.use: must be never, prefer or require, not 1"),
        (
            "scaleDownGracePeriod: 11s",
            "scaleDownGracePeriod: must be 0s to 10s, such as 2s, not '11s'",
        ),
        ("stateDir: 3", "stateDir: must be an absolute path, such as /var/lib/pinfold, not 3"),
        (
            "nriPluginIndex: 90",
            'nriPluginIndex: must be two digits in quotes, such as "90", not 90',
        ),
        ("cgroupParent: a", "cgroupParent: must be an absolute path, "),
        ("deviceRoot: [1]", "Object contains unknown field `deviceRoot` (fields: stateDir, "),
        ("podResourcesGroup: true", "podResourcesGroup: must be a text, not true"),
        ("confineSystem: 'yes'", "confineSystem: must be true or false, not 'yes'"),
        ("historyLimit: 0", "historyLimit: must be a whole number from 1 to 10000000, not 0"),
    ],
)
def test_what_is_wrong_in_the_section_is_named(load: Load, section: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{OWN}pinfold: {{{section}}}\n")
    assert words in str(caught.value)
    assert "kubelet.yaml: pinfold: " in str(caught.value)


def test_what_every_setting_may_be_is_said_in_words(load: Load) -> None:
    """Not in those of a pattern, and of that setting only."""
    settings = as_written(AgentSection())
    groups = {name: known for name, known in settings.items() if isinstance(known, dict)}
    places: list[tuple[str, ...]] = [(name,) for name in settings.keys() - groups.keys()]
    places += [(group, name) for group, options in groups.items() for name in options]
    for place in places:
        section: object = [1]
        for name in reversed(place):
            section = {name: section}
        with pytest.raises(ConfigError) as caught:
            load(f"{OWN}pinfold: {json.dumps(section)}\n")
        assert f"pinfold: {'.'.join(place)}: must be " in str(caught.value)
        assert str(caught.value).endswith(", not [1]")
        assert "regex" not in str(caught.value)
        assert "None" not in str(caught.value)


@pytest.mark.parametrize(("text", "seconds"), [("", 0), ("scaleDownGracePeriod: 10s", 10)])
def test_how_long_applications_are_told_is_read(load: Load, text: str, seconds: float) -> None:
    assert load(f"{OWN}pinfold: {{{text}}}\n").config.scale_down_grace_period == seconds


def test_reserved_cpus_may_add_up(load: Load) -> None:
    assert not load(f"{OWN}pinfold: {{}}\n").config.reserved_cpus_add_up
    assert load(f"{OWN}pinfold: {{reservedCPUsAddUp: true}}\n").config.reserved_cpus_add_up
    with pytest.raises(ConfigError, match="reservedCPUsAddUp: must be true or false"):
        load(f"{OWN}pinfold: {{reservedCPUsAddUp: 1}}\n")
