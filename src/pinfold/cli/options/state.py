"""The options of ``pinfold state`` that say which node a file belongs to, and which kubelet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from pinfold.adapters.machines.source import open_machine
from pinfold.adapters.statefile.files import StateFileError
from pinfold.adapters.statefile.references import read_pod_uids
from pinfold.cli.options.nodes import version_option
from pinfold.cli.output import F, input_errors
from pinfold.config.values import SettingError, flag_booleans
from pinfold.core.kubelet.feature_gates import (
    POD_LEVEL_RESOURCE_MANAGERS,
    FeatureGateError,
    check_feature_gates,
    gate_enabled,
)
from pinfold.core.kubelet.node_config import STATIC
from pinfold.core.kubelet.own_policies import OWN_POLICIES
from pinfold.core.kubelet.policy_options import PolicyOptionError, StaticPolicyOptions
from pinfold.core.kubelet.versions import NamedVersion
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import MachineError
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.state.acceptance import Kubelet
from pinfold.state.findings import Circumstances


def state_node_options(command: F) -> F:
    """What is known of the node, and ``--kubelet-version`` and ``--feature-gate``."""
    for option in (
        version_option(
            "--kubelet-version",
            "Answer as the kubelet of this version, such as 1.34 or v1.35.6. Without it: as one "
            "that writes the layout of the file.",
        ),
        _gate_option("--feature-gate", "A feature gate, such as PodLevelResourceManagers=true."),
        click.option("--machine", metavar="SRC", help="The machine the file belongs to."),
        click.option("--this-machine", is_flag=True, help="It belongs to this machine."),
        click.option("--reserved-cpus", metavar="LIST", help="reservedSystemCPUs."),
        click.option("--policy", metavar="NAME", help="The policy that is configured now."),
        click.option(
            "--policy-option",
            "policy_options",
            metavar="K=V",
            multiple=True,
            help="A policy option, such as strict-cpu-reservation=true.",
        ),
        click.option(
            "--pods",
            metavar="UIDS|FILE",
            help="The pods that exist: uids with commas, or a file (kubectl or crictl pods "
            "-o json, manifests with uids, one uid a line).",
        ),
    ):
        command = option(command)
    return command


def writer_options(command: F) -> F:
    """``--written-by`` and ``--writer-feature-gate``: the kubelet that has the file now."""
    version = version_option("--written-by", "The kubelet of this version writes it anew first.")
    gates = _gate_option("--writer-feature-gate", "A feature gate of the kubelet of --written-by.")
    return version(gates(command))


def _gate_option(name: str, text: str) -> Callable[[F], F]:
    dest = name.lstrip("-").replace("-", "_") + "s"
    return click.option(name, dest, metavar="K=BOOL", multiple=True, help=text)


def kubelet_of(asked: NamedVersion, gates: Sequence[str]) -> Kubelet:
    """The kubelet that a version and feature gates name; exits with one line where they are bad.

    What there is to say of the version goes to standard error.
    """
    if asked.remark:
        click.echo(f"note: {asked.remark}", err=True)
    with input_errors(SettingError, FeatureGateError):
        parsed = flag_booleans(_pairs(gates, "feature gate"))
        check_feature_gates(parsed, asked.version)
    return Kubelet(asked.version, gate_enabled(POD_LEVEL_RESOURCE_MANAGERS, parsed, asked.version))


def _pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"{what} {text!r}: expected KEY=VALUE")
        pairs[key] = value
    return pairs


def circumstances_of(  # noqa: PLR0913 - the options that check and repair share
    file: Path,
    *,
    machine: str | None,
    this_machine: bool,
    reserved_cpus: str | None,
    policy: str | None,
    policy_options: tuple[str, ...],
    pods: str | None,
    kubelet_version: NamedVersion | None,
    feature_gates: tuple[str, ...],
) -> Circumstances:
    """What the options say of the node; exits with one line where one of them is bad."""
    if machine is not None and this_machine:
        raise click.UsageError("--machine and --this-machine exclude each other")
    options = _pairs(policy_options, "--policy-option")
    if kubelet_version is None and feature_gates:
        raise click.UsageError("--feature-gate needs --kubelet-version")
    kubelet = None if kubelet_version is None else kubelet_of(kubelet_version, feature_gates)
    topology = None
    if machine is not None or this_machine:
        with input_errors(MachineError, prefix="--machine: "):
            topology = _topology(machine)
    with input_errors(CPUSetError, prefix="--reserved-cpus: "):
        reserved = None if reserved_cpus is None else CPUSet.parse(reserved_cpus)
    with input_errors(PolicyOptionError, StateFileError):
        # Alpha options do not change what is in the file; none of them is refused here.
        gates = {"CPUManagerPolicyAlphaOptions": True}
        parsed = StaticPolicyOptions.parse(options, gates) if options else None
        return Circumstances(
            path=str(file),
            topology=topology,
            machine=machine,
            reserved=reserved,
            strict_cpu_reservation=bool(parsed and parsed.strict_cpu_reservation),
            # The state of these says static: they place as it does.
            policy=STATIC if policy in OWN_POLICIES else policy,
            pods=pods_of(pods),
            version=None if kubelet is None else kubelet.version,
            pod_level=None if kubelet is None else kubelet.pod_level,
        )


def pods_of(text: str | None) -> frozenset[str] | None:
    """The uids of an option that takes pods; raises StateFileError."""
    return None if text is None else read_pod_uids(text)


def _topology(machine: str | None) -> CPUTopology:
    """The CPUs that a kubelet on ``machine`` (``None``: this one) sees."""
    return kubelet_view(open_machine(machine)).topology
