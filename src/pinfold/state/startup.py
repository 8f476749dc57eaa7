"""What the CPU manager's policy does with a restored state when the kubelet starts.

Upstream: ``staticPolicy.validateState`` (``cpumanager/policy_static.go``, 1.34); the none policy
takes any state.
"""

from __future__ import annotations

from msgspec.structs import replace

from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.go_json import quote
from pinfold.state.ledger import Bounds, Ledger


class StartError(ValueError):
    """A state with which the kubelet does not start; the message is the kubelet's."""


def start_policy(
    ledger: Ledger,
    topology: CPUTopology,
    reserved: CPUSet,
    options: StaticPolicyOptions,
) -> Ledger:
    """Start the policy that ``ledger.policy_name`` names on a restored ledger.

    Under the static policy an empty ledger gets all CPUs as its shared pool (without the
    reserved ones under ``strict-cpu-reservation``); under any other it comes back as it is.

    Raises:
        StartError: the ledger does not fit the machine or the reservation.
    """
    if ledger.policy_name != "static":
        return ledger
    bounds = Bounds(topology.cpus, reserved, options.strict_cpu_reservation)
    validate_static_state(ledger, bounds)
    if not ledger.default:
        ledger = replace(ledger, default=bounds.pool)
    return replace(ledger, bounds=bounds)


def validate_static_state(ledger: Ledger, bounds: Bounds) -> None:
    """Check a restored ledger as the static policy does.

    The CPUs in the state have to be those of the machine, without the reserved ones under
    ``strict-cpu-reservation``, which are in no set.

    Where several containers overlap the shared pool, upstream names one at random; this names
    the first by pod uid and container name.

    Raises:
        StartError: in the kubelet's words.
    """
    default = ledger.default
    if not default:
        if ledger.assignments:
            raise StartError("default cpuset cannot be empty")
        return
    _validate_reserved(default, bounds)
    for uid, containers in sorted(ledger.assignments.items()):
        for name, cpus in sorted(containers.items()):
            if not default.isdisjoint(cpus):
                raise StartError(
                    f"pod: {uid}, container: {name} cpuset: {quote(str(cpus))} "
                    f"overlaps with default cpuset {quote(str(default))}"
                )
    if ledger.known != bounds.pool:
        raise StartError(
            f"current set of available CPUs {quote(str(bounds.pool))} "
            f"doesn't match with CPUs in state {quote(str(ledger.known))}"
        )


def _validate_reserved(default: CPUSet, bounds: Bounds) -> None:
    if bounds.strict_cpu_reservation:
        present = bounds.reserved & default
        if present:
            raise StartError(
                f"some of strictly reserved cpus: {quote(str(present))} "
                f"are present in defaultCpuSet: {quote(str(default))}"
            )
    elif not bounds.reserved <= default:
        raise StartError(
            f"not all reserved cpus: {quote(str(bounds.reserved))} "
            f"are present in defaultCpuSet: {quote(str(default))}"
        )
