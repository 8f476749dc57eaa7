"""What is refused says what is wrong and what to do, in one line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pinfold import NodeConfig
from pinfold.cli import main
from tests.roots import ROOT

PODS = f"{ROOT}/examples/pods"
CONFIG = f"{ROOT}/examples/kubelet.yaml"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", PODS, "--policy="), "--policy: an empty name is none; leave it out"),
        (
            ("plan", PODS, "--machine", "2s4c2t", "--kubelet-config", "-"),
            "--kubelet-config -: standard input is for manifests; give a file",
        ),
        (("state", "show", CONFIG), "of value; it is no state file of a kubelet"),
    ],
)
def test_it_is_told_with_its_remedy(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_gate_is_true_or_false_and_no_text() -> None:
    with pytest.raises(TypeError, match=r"feature_gates.*a mapping of names to true or false"):
        NodeConfig(feature_gates={"X": "true"})  # type: ignore[dict-item]  # that is what is wrong
    assert NodeConfig(feature_gates={"CPUManagerPolicyAlphaOptions": True}).feature_gates
