"""State files as text for people."""

from __future__ import annotations

from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Ledger
from pinfold.state.restore import to_checkpoint
from pinfold.state.show import describe, describe_text
from pinfold.state.state_file import StateFile


def head(file: bytes) -> dict[str, str]:
    """The lines above the table."""
    lines = describe_text(StateFile.read(file)).partition("\n\n")[0].splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_the_policy_is_told_and_that_none_is_named() -> None:
    for name, told in (("static", "static"), ("", "(none named)")):
        cpu = to_checkpoint(Ledger(name, CPUSet.parse("0-3"))).encode()
        assert head(cpu)["policy"] == told
        assert describe(StateFile.read(cpu), "file").policy == name
    memory = b'{"policyName":"%s","machineState":{},"entries":{},"checksum":0}'
    assert head(memory % b"Static")["policy"] == "Static"
    assert head(memory % b"")["policy"] == "(none named)"
    assert describe(StateFile.read(memory % b""), "file").policy == ""
