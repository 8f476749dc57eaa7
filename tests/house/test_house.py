"""House rules that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Container, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from tests.roots import ROOT

CODE = ("src", "tests", "benchmarks", "fuzz", "mutants", "trial", "docs")
LIMIT = 400
"""Lines; a split needs two reasons to change, and is not made for the number."""
MOST_MODULES = 25
LIMIT_OF_TESTS = 500
"""A test module is a list of cases; it is split when it has two subjects, not when it is long."""


def tracked() -> list[Path]:
    """The files of the project: what git knows of, else what lies in the folders of an archive."""
    if (ROOT / ".git").exists():
        done = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        paths = [ROOT / path for path in done.stdout.split("\0") if path]
    else:
        paths = [path for folder in CODE for path in (ROOT / folder).rglob("*")]
    return [path for path in paths if path.is_file() and "__pycache__" not in path.parts]


def modules() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def texts() -> Iterator[tuple[str, str]]:
    """Name and text of every tracked file that is text."""
    for path in tracked():
        try:
            yield name(path), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_no_module_is_too_long() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in modules()}
    long = [
        path
        for path, lines in lengths.items()
        if lines > (LIMIT_OF_TESTS if path.startswith("tests/") else LIMIT)
    ]
    assert long == [], "look for the seam"


def test_no_folder_is_a_heap() -> None:
    counts = Counter(path.parent for path in modules() if name(path).startswith("src/"))
    assert [name(folder) for folder, count in counts.items() if count > MOST_MODULES] == []


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "helpers", "common", "constants", "misc"}
    assert [name(path) for path in modules() if path.stem in drawers] == []


def test_no_test_imports_a_test_module() -> None:
    """What several tests need is in scenes, under a name that says what it stands in for."""
    shared = re.compile(r"tests\.(?:scenes|vectors|roots|cluster\.api_server)\b")
    found = [
        f"{name(path)}: {module}"
        for path in modules()
        # As text: what a test lets another process run imports, too.
        for module in re.findall(r"\b(?:from|import) (tests\.[\w.]+)", path.read_text())
        if not shared.match(module)
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        name(path)
        for path in modules()
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


# Written in pieces, so that this file does not hold what it looks for.
FORBIDDEN = {
    "a path of a machine": r"(?<![\w.*{/-])/(?:work|root|opt)/(?!cni|kata)\w",
    "the host of a registry": r"py" + r"pi\.org|python" + r"hosted\.org|npm" + r"js\.org",
    "a home directory": r"/ho" + r"me/\w",
    "a leftover": r"\b(?:FIX" + r"ME|XX" + r"X)\b|<<<<" + r"<<<|>>>>" + r">>>",
    "an issue number": r"(?i)\bissue\s+#?\d",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    found = [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts()
        if path != "LICENSE"
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(FORBIDDEN[what], line)
    ]
    assert found == []


def test_no_record_hands_on_what_was_computed_of_it() -> None:
    """``replace`` carries a field on: one that is computed of others would be that of before."""
    # Compares what it is of before it believes itself.
    known = {"src/pinfold/core/devices/state.py: DeviceState._tables"}
    found = {
        f"{name(path)}: {record.name}.{field.target.id}"
        for path in modules()
        if name(path).startswith("src/")
        for record in ast.walk(ast.parse(path.read_text()))
        if isinstance(record, ast.ClassDef) and any(k.arg == "frozen" for k in record.keywords)
        for field in record.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and field.target.id.startswith("_")
    }
    assert found == known


def test_every_suppression_has_a_reason() -> None:
    suppression = re.compile(r"#\s*(noqa|type:\s*ignore)(:? ?\[?[\w\-, ]+?\]?)?(\s+[-#] +\S.*)?$")
    found = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in modules()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (match := suppression.search(line)) and not match[3]
    ]
    assert found == []


def test_every_ignored_rule_has_a_reason() -> None:
    lint = (ROOT / "pyproject.toml").read_text().split("[tool.ruff.lint]")[1].split("[tool.mypy")[0]
    rules = re.findall(r'^\s+"[A-Z]+\d+".*$', lint, re.MULTILINE)
    assert len(rules) > 10
    assert [rule for rule in rules if not re.search(r"# \S", rule)] == []


def test_changelog_keeps_its_form() -> None:
    """Keep a Changelog: newest first, known kinds of change, ISO dates, no empty sections."""
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog\n")
    releases = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    for release in releases[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", release)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds
    assert not re.search(r"^### .*\n+(?:#|\Z)", text, re.MULTILINE)


def test_requirements_are_locked_with_hashes_and_no_address() -> None:
    for path in sorted(ROOT.glob("requirements*.txt")):
        text = path.read_text()
        assert "//" not in text, path.name
        assert not re.search(r"^\s*(?:-|@|file:)(?!-hash=)", text, re.MULTILINE), path.name
        for entry in re.split(r"\n(?=\S)", text.strip()):
            assert re.match(r"[\w.\-]+==\S+", entry), entry
            assert "--hash=sha256:" in entry, entry


def test_requirements_hold_what_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    for file, declared in {
        "requirements.txt": project["project"]["dependencies"],
        "requirements-build.txt": groups["build"],
        "requirements-dev.txt": [entry for entry in groups["dev"] if isinstance(entry, str)],
    }.items():
        locked = set(re.findall(r"^([\w.\-]+)==", (ROOT / file).read_text(), re.MULTILINE))
        names = {re.split(r"[<>=~!;\[ ]", entry)[0].lower() for entry in declared}
        assert names <= locked, f"run make lock: {names - locked} missing in {file}"


def test_a_version_is_locked_once() -> None:
    """A package that several requirements files hold has the same version in each."""
    versions: dict[str, set[str]] = {}
    for path in ROOT.glob("requirements*.txt"):
        for package, version in re.findall(r"^([\w.\-]+)==(\S+)", path.read_text(), re.MULTILINE):
            versions.setdefault(package, set()).add(version)
    assert {package for package, found in versions.items() if len(found) > 1} == set()


def layers_of(package: str) -> dict[str, Any]:
    """The contract about the layers of a package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts: list[dict[str, Any]] = project["tool"]["importlinter"]["contracts"]
    return next(c for c in contracts if c.get("containers") == [package])


def test_the_layers_are_drawn_as_they_are_enforced() -> None:
    """docs/architecture.md shows the layers of the import contract, in its order."""
    enforced = [
        [part.strip() for part in layer.split("|")] for layer in layers_of("pinfold")["layers"]
    ]
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawing = re.search(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert drawing is not None
    drawn = [
        re.findall(r"[a-z_]+", row.split("  ")[0].replace("|", " "))
        for row in drawing[1].splitlines()
        if row.strip() and not row.startswith(" ")
    ]
    assert drawn == enforced


@pytest.mark.parametrize("package", ["pinfold", "pinfold.core"])
def test_every_folder_is_in_a_layer(package: str) -> None:
    """The import contract is exhaustive, and names nothing that is not there."""
    contract = layers_of(package)
    assert contract["exhaustive"] is True
    layers = {part.strip() for layer in contract["layers"] for part in layer.split("|")}
    place = ROOT / "src" / package.replace(".", "/")
    assert {path.parent.name for path in place.glob("*/__init__.py")} == layers


MOST_IMPORTS_IN_FUNCTIONS = 68
"""60, and what only plans of a cluster (45 ms) and a watched node (8 ms) need of the commands; and
what needs an extra, which was imported by a string that nobody saw (115 ms and more each)."""


def imports_in_functions(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inside = {
        node.lineno: node
        for function in ast.walk(tree)
        if isinstance(function, functions)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    yield from inside.values()


def test_imports_in_functions_are_few_and_carry_what_they_save() -> None:
    """Imports are at the top, unless a measurement says otherwise: milliseconds, in its line."""
    found = []
    silent = []
    for path in modules():
        if not name(path).startswith("src/"):
            continue
        text = path.read_text()
        for node in imports_in_functions(ast.parse(text)):
            line = text.splitlines()[node.lineno - 1]
            found.append(f"{name(path)}:{node.lineno}")
            if not re.search(r"# noqa: PLC0415 - \d+(?:\.\d)? ms\b", line):
                silent.append(f"{found[-1]}: {line.strip()}")
    assert silent == []
    assert len(found) <= MOST_IMPORTS_IN_FUNCTIONS


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported(tree: ast.Module, among: Container[str]) -> Iterator[str]:
    """The modules of the package that a module names, also where only types are checked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in among)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in among else node.module


def test_no_circle_of_imports_is_hidden() -> None:
    """Nobody imports, in a function or for types only, who imports him; a type belongs below."""
    trees = {
        module_name(path): ast.parse(path.read_text())
        for path in modules()
        if name(path).startswith("src/pinfold/")
    }
    # The package's own names are for users: it imports them when they are first asked for.
    graph = {
        module: {other for other in imported(tree, trees) if other in trees} - {"pinfold"}
        for module, tree in trees.items()
        if module != "pinfold"
    }
    # A package that gives out names of its modules is not above them.
    for package in [module for module in graph if f"{module}." in " ".join(graph)]:
        graph[package] = {o for o in graph[package] if not o.startswith(f"{package}.")}
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
    TopologicalSorter(graph).prepare()
