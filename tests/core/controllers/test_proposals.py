"""Many controllers, one wish."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.controllers.proposals import Proposal, Rank, arbitrate
from pinfold.core.moves.owners import Owner
from pinfold.core.values.cpuset import CPUSet

OWNERS = [Owner(uid, "c") for uid in "abcd"]
PROPOSALS = st.lists(
    st.builds(
        Proposal,
        rank=st.sampled_from(Rank),
        why=st.just("load"),
        owners=st.frozensets(st.sampled_from(OWNERS)),
        cpus=st.frozensets(st.integers(0, 5)).map(CPUSet),
        moves=st.integers(0, 3),
    ),
    max_size=8,
)


@given(PROPOSALS, st.frozensets(st.sampled_from(OWNERS)), st.integers(-1, 6))
def test_what_is_granted_goes_together_and_who_waits_knows_why(
    proposals: list[Proposal], busy: frozenset[Owner], budget: int
) -> None:
    verdict = arbitrate(proposals, busy, budget)
    assert len(verdict.granted) + len(verdict.refused) == len(proposals)
    owners = [owner for one in verdict.granted for owner in one.owners]
    cpus = [cpu for one in verdict.granted for cpu in one.cpus]
    assert len(set(owners)) == len(owners)
    assert len(set(cpus)) == len(cpus)
    assert not busy & set(owners)
    assert sum(one.moves for one in verdict.granted) <= max(budget, 0)
    assert [one.rank for one in verdict.granted] == sorted(one.rank for one in verdict.granted)
    for refused in verdict.refused:
        before = [one for one in verdict.granted if one.rank <= refused.proposal.rank]
        left = budget - sum(one.moves for one in before)
        assert refused.reason
        assert (
            refused.proposal.owners & busy
            or refused.proposal.moves > max(left, 0)
            or any(
                one.owners & refused.proposal.owners or one.cpus & refused.proposal.cpus
                for one in before
            )
        )


def test_who_comes_first_has_it() -> None:
    owner = frozenset({Owner("a", "c")})
    lend = Proposal(rank=Rank.LENDING, why="idle", owners=owner, cpus=CPUSet([3]))
    give_back = Proposal(rank=Rank.RETURN, why="load", owners=owner, cpus=CPUSet([2]))
    verdict = arbitrate([lend, give_back], frozenset(), 0)
    assert verdict.granted == (give_back,)
    assert verdict.refused[0].reason == "return changes pod 'a', container 'c' now"
