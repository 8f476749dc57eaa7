"""The options of the policy ``dynamic`` in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pinfold.config.kubelet import ConfigError, LoadedConfig, load_kubelet_config

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
