"""The library as its users meet it: names, types, errors, and one program under mypy."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pinfold
from pinfold import (
    Container,
    CPUSet,
    CPUSetError,
    LoadedExperiment,
    ManifestError,
    NodeConfig,
    PinfoldError,
    Planner,
    Pod,
    Quantity,
    ResizeError,
    ResizeWish,
    load_devices,
    load_experiment,
    load_kubelet_config,
    open_machine,
    parse_short_form,
    pod_from_api,
    read_manifests,
    simulate,
)
from tests.roots import ROOT

EXAMPLES = ROOT / "examples"
MACHINE = parse_short_form("1s4c2t")
TWO = {"cpu": Quantity.parse("2")}


def test_every_public_name_is_there_and_has_a_docstring() -> None:
    assert pinfold.__version__
    assert sorted(pinfold.__all__) == dir(pinfold)
    for name in pinfold.__all__:
        value = getattr(pinfold, name)
        if name != "__version__":
            assert inspect.getdoc(value), name


def test_every_public_error_has_one_base() -> None:
    errors = [
        value
        for name in pinfold.__all__
        if inspect.isclass(value := getattr(pinfold, name)) and issubclass(value, Exception)
    ]
    assert len(errors) > 10
    assert [error for error in errors if not issubclass(error, PinfoldError)] == []


def test_what_public_functions_say_they_raise_can_be_imported() -> None:
    """Each name below ``Raises:`` of a public docstring is exported, or is Python's own."""
    said = [
        (name, line.partition(":")[0].strip())
        for name, value in public()
        for line in inspect.cleandoc(value.__doc__ or "").partition("Raises:")[2].split("\n")
        if line.startswith("    ") and not line.startswith("     ") and ":" in line
    ]
    assert len(said) > 20
    known = {"TypeError", "ValueError", *pinfold.__all__}
    assert [(name, error) for name, error in said if error not in known] == []


def test_the_page_of_the_library_has_every_name() -> None:
    """That it is up to date tells the test of all generated pages."""
    page = (ROOT / "docs" / "reference" / "library.md").read_text(encoding="utf-8")
    headings = [line[4:] for line in page.splitlines() if line.startswith("### ")]
    assert sorted([*headings, "__version__"]) == sorted(pinfold.__all__)


def public() -> list[tuple[str, Any]]:
    """The public functions and classes, and the public methods of the classes."""
    found: list[tuple[str, Any]] = []
    for name in pinfold.__all__:
        value = getattr(pinfold, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            found.append((name, value))
        if inspect.isclass(value):
            found += [
                (f"{name}.{method}", getattr(value, method))
                for method, inside in vars(value).items()
                if not method.startswith("_")
                and isinstance(inside, (classmethod, staticmethod)) | inspect.isfunction(inside)
            ]
    return found


@pytest.mark.parametrize("path", ["gpu-node/pods.yaml", Path("gpu-node") / "pods.yaml"])
def test_one_path_is_one_path(path: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    assert read_manifests(path) == read_manifests([path])
    with pytest.raises(ManifestError, match=r"^nowhere: no such file"):
        read_manifests("nowhere")


def test_every_function_that_takes_a_path_takes_a_pathlib_one() -> None:
    node = EXAMPLES / "gpu-node"
    machine = open_machine(node / "machine.json")
    assert machine == open_machine(str(node / "machine.json"))
    assert load_kubelet_config(node / "kubelet.yaml").config.cpu_manager_policy == "static"
    assert load_devices(node / "devices.yaml", machine).inventory
    experiment = EXAMPLES / "simulation" / "small.yaml"
    loaded = load_experiment(experiment, traces=EXAMPLES)
    assert isinstance(loaded, LoadedExperiment)
    assert loaded.name == load_experiment(str(experiment), traces=str(EXAMPLES)).name


WRONG: dict[str, Callable[[], object]] = {
    "a path must be a str or a pathlib.Path, not 3": lambda: open_machine(3),  # type: ignore[arg-type] # wrong on purpose
    "a path must be a str or a pathlib.Path, not b'x'": lambda: open_machine(b"x"),  # type: ignore[arg-type] # wrong on purpose
    "paths must be a path (str or pathlib.Path), or several, not None": (
        lambda: read_manifests(None)  # type: ignore[arg-type] # wrong on purpose
    ),
    "paths must be a path (str or pathlib.Path), or several, not b'x'": (
        lambda: read_manifests(b"x")  # type: ignore[arg-type] # wrong on purpose
    ),
    "a path must be a str or a pathlib.Path, not 7": lambda: read_manifests([7]),  # type: ignore[list-item] # wrong on purpose
    "a path must be a str or a pathlib.Path, not 4": lambda: load_experiment(4),  # type: ignore[arg-type] # wrong on purpose
    "a path must be a str or a pathlib.Path, not 5": lambda: simulate(5),  # type: ignore[arg-type] # wrong on purpose
    "seeds must be a sequence of whole numbers, such as [1, 2], not 3": (
        lambda: simulate("x.yaml", seeds=3)  # type: ignore[arg-type] # wrong on purpose
    ),
    "manifest must be a Pod as a mapping, not None": (
        lambda: pod_from_api(None)  # type: ignore[arg-type] # wrong on purpose
    ),
    "a path must be a str or a pathlib.Path, not 6": lambda: load_kubelet_config(6),  # type: ignore[arg-type] # wrong on purpose
    "a path must be a str or a pathlib.Path, not 8": lambda: load_devices(8, MACHINE),  # type: ignore[arg-type] # wrong on purpose
    "machine must be a Machine, as open_machine gives, not '2s'": (
        lambda: load_devices("x", "2s")  # type: ignore[arg-type] # wrong on purpose
    ),
    "machine must be a Machine, as open_machine gives, not '2s8c'": (
        lambda: Planner("2s8c", NodeConfig())  # type: ignore[arg-type] # wrong on purpose
    ),
    "config must be a NodeConfig, not {}": lambda: Planner(MACHINE, {}),  # type: ignore[arg-type] # wrong on purpose
    "each of the pods must be a Pod, not 'p'": (
        lambda: Planner(MACHINE, NodeConfig()).plan("p")  # type: ignore[arg-type] # wrong on purpose
    ),
    "pods must be several pods, such as the pods of read_manifests, not None": (
        lambda: Planner(MACHINE, NodeConfig()).plan(None)  # type: ignore[arg-type] # wrong on purpose
    ),
    "reserved_system_cpus must be a CPUSet, such as CPUSet.parse('0-3'), not '0-3'": (
        lambda: NodeConfig(reserved_system_cpus="0-3")  # type: ignore[arg-type] # wrong on purpose
    ),
    "reserved_system_cpus must be a CPUSet, such as CPUSet.parse('0-3'), not [0]": (
        lambda: NodeConfig(reserved_system_cpus=[0])  # type: ignore[arg-type] # wrong on purpose
    ),
    "max_pods must be a whole number, not True": lambda: NodeConfig(max_pods=True),
    "max_pods must be a whole number, not 1.5": lambda: NodeConfig(max_pods=1.5),  # type: ignore[arg-type] # wrong on purpose
    "cpu_cfs_quota_period must be a number of seconds, not '100ms'": (
        lambda: NodeConfig(cpu_cfs_quota_period="100ms")  # type: ignore[arg-type] # wrong on purpose
    ),
    "cpu_cfs_quota must be True or False, not 1": lambda: NodeConfig(cpu_cfs_quota=1),  # type: ignore[arg-type] # wrong on purpose
    "cpu_manager_policy must be a text, the kubelet's word, not None": (
        lambda: NodeConfig(cpu_manager_policy=None)  # type: ignore[arg-type] # wrong on purpose
    ),
    "feature_gates must be a mapping of names to true or false, not 'A=true'": (
        lambda: NodeConfig(feature_gates="A=true")  # type: ignore[arg-type] # wrong on purpose
    ),
    "kube_reserved['cpu'] must be a Quantity, as Quantity.parse reads, not '1'": (
        lambda: NodeConfig(kube_reserved={"cpu": "1"})  # type: ignore[dict-item] # wrong on purpose
    ),
    "requests['cpu'] must be a Quantity, as Quantity.parse reads, not 2": (
        lambda: Container("c", requests={"cpu": 2})  # type: ignore[dict-item] # wrong on purpose
    ),
    "limits must be a mapping such as {'cpu': Quantity.parse('2')}, not '2'": (
        lambda: Container("c", TWO, "2")  # type: ignore[arg-type] # wrong on purpose
    ),
    "name must be a text, not None": lambda: Container(None),  # type: ignore[arg-type] # wrong on purpose
    "containers must be a tuple of Container, not []": lambda: Pod("u", "p", containers=[]),  # type: ignore[arg-type] # wrong on purpose
    "cpus must be a whole number, not '4'": lambda: ResizeWish("p", None, "4"),  # type: ignore[arg-type] # wrong on purpose
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_type_is_told_by_the_name_of_what_is_wrong(said: str) -> None:
    with pytest.raises(TypeError) as error:
        WRONG[said]()
    assert str(error.value) == said


def test_numbers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="max_pods is -1, must not be negative"):
        NodeConfig(max_pods=-1)
    with pytest.raises(ValueError, match="cpu_cfs_quota_period is -1"):
        NodeConfig(cpu_cfs_quota_period=-1)
    with pytest.raises(ResizeError, match="0 is no number of CPUs from 1"):
        ResizeWish("p", None, 0)
    with pytest.raises(CPUSetError, match="65536: CPU ids above 65535"):
        CPUSet([65536])


PROGRAM = '''\
"""What a scheduler would do with the library."""

from pathlib import Path

import pinfold
from pinfold import (
    Container,
    CPUSet,
    Device,
    DeviceResource,
    Explanation,
    Machine,
    Manifests,
    NodeConfig,
    PinfoldError,
    Plan,
    Planner,
    Pod,
    Quantity,
    ResizeWish,
    changed_pods,
    explain_pod,
    load_devices,
    load_kubelet_config,
    open_machine,
    plan_document,
    read_manifests,
)


def plan(machine: Machine, node: Path) -> Plan:
    config: NodeConfig = load_kubelet_config(node / "kubelet.yaml").config
    devices = load_devices(node / "devices.yaml", machine).inventory
    manifests: Manifests = read_manifests(node / "pods.yaml")
    assert manifests.pods == read_manifests([node / "pods.yaml", ]).pods
    return Planner(machine, config, devices=devices).plan(manifests.pods)


node = Path("gpu-node")
first = plan(open_machine(node / "machine.json"), node)
two = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Gi")}
pod = Pod("default/p", "p", containers=(Container("c", two, two),))
static = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
gpus = {"gpu-0": Device("gpu-0", numa_nodes=(0,))}
planner = Planner(
    open_machine("1s4c2t"), static, devices={"e.com/gpu": DeviceResource("e.com/gpu", gpus)}
)
placed: Plan = planner.resize(planner.plan([pod]), ResizeWish("p", None, 3))
cpus: CPUSet = placed.pods[0].containers[0].cpus | CPUSet([0])
why: Explanation = explain_pod(planner, [pod], "p")
names = [old.pod.name for old, new in changed_pods(placed, planner.plan([pod]))]
try:
    open_machine("2s0c")
except PinfoldError as error:
    print(len(first.admitted), cpus, why.decision.admitted, names, str(error)[:6])
print(pinfold.__version__, len(plan_document(placed).pods))
'''


def test_a_program_passes_mypy_strict_and_runs(tmp_path: Path) -> None:
    """As whoever installs the package has it: ``py.typed`` is there, and ``Path`` is taken."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    ran = subprocess.run(
        [sys.executable, str(program)], cwd=EXAMPLES, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == "3 0-3 True ['p'] '2s0c'"
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from pinfold import CPUSet, read_manifests\nread_manifests(3)\nCPUSet([1]) | {1}\n",
        encoding="utf-8",
    )
    refused = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(wrong)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "wrong.py:2: error" in refused.stdout
    assert "wrong.py:3: error" in refused.stdout
