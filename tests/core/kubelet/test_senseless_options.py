"""Options with which a controller would decide nothing, or could not take back, are refused."""

from __future__ import annotations

import msgspec
import pytest

from pinfold.core.kubelet.own_policies import OwnPolicies


@pytest.mark.parametrize(
    ("group", "options", "words"),
    [
        ("suppression", {"stepUp": "0%"}, "stepUp must be more than 0%: .*never go up"),
        ("suppression", {"margin": "100%"}, "margin 100% must be less than threshold 65%"),
        ("suppression", {"margin": "65%"}, "margin 65% must be less than threshold 65%"),
        ("suppression", {"threshold": "3%"}, "margin 3% must be less than threshold 3%"),
        ("loadDriven", {"demoteUsage": "0%"}, "demoteUsage must be more than 0%: nobody would"),
        ("loadDriven", {"promoteUsage": "30%"}, "demoteUsage 30% must be less than promoteUsage"),
        ("loadDriven", {"promotePressure": "0%"}, "promotePressure must be more than 0%"),
        ("lending", {"lendBelow": "0%"}, "lendBelow must be more than 0%"),
        ("lending", {"siblingsBelow": "71%"}, "siblingsBelow 71% must not be more than lendBelow"),
        ("lending", {"returnAbove": "91%"}, "returnAbove 91% must not be more than 90%"),
        ("parking", {"parkBelow": "0%"}, "parkBelow must be more than 0%"),
        ("parking", {"unparkFrom": "40%"}, "unparkFrom 40% must be more than parkBelow 40%"),
    ],
)
def test_each_is_refused_with_its_place_and_the_reason(
    group: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=rf"{words}.*- at `\$\.{group}`"):
        msgspec.convert({group: options}, OwnPolicies)


@pytest.mark.parametrize(
    ("group", "options"),
    [
        ("suppression", {"stepUp": "1%", "margin": "64%"}),
        ("suppression", {"margin": "0%", "threshold": "1%"}),
        ("loadDriven", {"demoteUsage": "1%", "promoteUsage": "2%", "promoteThrottled": "0%"}),
        ("lending", {"lendBelow": "1%", "siblingsBelow": "0%", "returnAbove": "2%"}),
        ("parking", {"parkBelow": "1%", "unparkFrom": "2%"}),
    ],
)
def test_what_leaves_something_to_decide_is_taken(group: str, options: dict[str, str]) -> None:
    msgspec.convert({group: options}, OwnPolicies)
