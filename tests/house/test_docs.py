"""The documents are true: their commands run, their examples give what is shown, links lead on."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

import pinfold
from pinfold.cli import main
from pinfold.core.pod.api import pod_from_api
from pinfold.planning.explaining.decision import explain_pod
from tests.roots import ROOT
from tests.scenes.console import Command, commands, matches, run
from tests.scenes.published_schemas import explain_document, plan_document

EXAMPLES = ROOT / "examples"
PROGRAMS = Path(sysconfig.get_path("scripts"))


def documents() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", documents(), ids=name)
def test_commands_of(document: Path, tmp_path: Path) -> None:
    found = list(commands(document.read_text()))
    scene = tmp_path / "examples"
    shutil.copytree(EXAMPLES, scene)
    for command in found:
        done = run(command, scene, PROGRAMS)
        where = f"{name(document)}:{command.line}: {command.text}"
        assert done.returncode == command.status, f"{where}\n{done.stdout}"
        assert matches(command.output, done.stdout), f"{where}\n{done.stdout}"


def test_what_readers_make_is_not_for_the_repository() -> None:
    # Readers work in the folder examples of a checkout.
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    made = {
        file
        for document in documents()
        for line in re.findall(r"^\$ (.*)$", document.read_text(), re.MULTILINE)
        for file in re.findall(r"> ([\w./-]+)$|capture -o (\S+)", line)
    }
    names = {f"/examples/{one or other}" for one, other in made}
    assert "/examples/wrong.yaml" in names
    assert [
        name
        for name in sorted(names - set(ignored))
        if not name.startswith("/examples/try/") and not name.startswith("/examples//dev/")
    ] == []
    assert "/examples/try/" in ignored


@pytest.mark.parametrize("document", documents(), ids=name)
def test_python_examples_of(document: Path) -> None:
    blocks = re.findall(r"^```pycon\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest(
        "\n".join(blocks), {}, document.name, str(document), 0
    )
    report: list[str] = []
    assert doctest.DocTestRunner().run(test, out=report.append).failed == 0, "".join(report)


@pytest.mark.parametrize("document", documents(), ids=name)
def test_links_of(document: Path) -> None:
    """Relative links lead to files, and their fragments to headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, fragment = target.partition("#")
        page = (document.parent / path).resolve() if path else document
        assert page.exists(), f"{name(document)} links to {target}"
        if fragment:
            assert fragment in anchors(page), f"{name(document)} links to {target}"


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_changelog_says_everything_once() -> None:
    """It is merged by taking both sides."""
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    for version in versions:
        lines = [line for line in version.splitlines() if line.startswith(("###", "- "))]
        assert len(set(lines)) == len(lines), version.partition("\n")[0]


@pytest.mark.parametrize("folder", ["how-to", "reference", "adr"])
def test_every_page_is_listed_once(folder: str) -> None:
    """Decisions in their order."""
    pages = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md"))
    pages.remove("README.md")
    text = (ROOT / "docs" / folder / "README.md").read_text()
    listed = re.findall(r"^- \[.*?\]\(([\w-]+\.md)\)", text, re.MULTILINE)
    assert sorted(listed) == pages
    if folder == "adr":
        assert listed == pages


@pytest.mark.parametrize(
    "module",
    ["pinfold", *(found.name for found in pkgutil.walk_packages(pinfold.__path__, "pinfold."))],
)
def test_doctests_of(module: str) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(importlib.import_module(module)):
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_the_reader_of_console_blocks() -> None:
    text = """\
<!-- exit: 3 -->
```console
$ first \\
    more
$ second
out
```
<!-- not run: needs root -->
```console
$ third
```
```sh
$ fourth
```
"""
    assert list(commands(text)) == [
        Command(3, "first \\\n    more"),
        Command(5, "second", ["out"], 3),
    ]


def test_a_block_of_output_alone_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: a console block has to start with a command"):
        list(commands("```console\nout\n```\n"))


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ([], "anything\n", True),
        (["a"], "a\n", True),
        (["a"], "b\n", False),
        (["a", ""], "a  \n", True),
        (["a"], "a\nb\n", False),
        (["a", "..."], "a\nb\nc\n", True),
        (["...", "c"], "a\nb\nc\n", True),
        (["a", "...", "c"], "a\nc\n", True),
        (["x ... z"], "x y z\n", True),
        (["x ... z"], "x\nz\n", False),
        (["a.c"], "abc\n", False),
    ],
)
def test_matching_of_output(expected: list[str], output: str, *, same: bool) -> None:
    assert matches(expected, output) is same


def test_a_command_runs_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content\n")
    done = run(Command(1, "cat file; echo oops >&2; exit 5"), tmp_path, PROGRAMS)
    assert (done.returncode, done.stdout) == (5, "content\noops\n")


def generator() -> ModuleType:
    """docs/generate.py, which is a script and in no package, with what is beside it."""
    if str(ROOT / "docs") not in sys.path:
        sys.path.append(str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_is_up_to_date() -> None:
    """``make docs`` would change nothing."""
    for path, text in generator().pages().items():
        page = ROOT / "docs" / path
        assert page.exists(), f"{path} is missing; run make docs"
        assert page.read_text() == text, f"{path} is stale; run make docs"


def test_the_tests_of_the_specification_are_there() -> None:
    page = (ROOT / "docs" / "reference" / "specification.md").read_text()
    named = set(re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", page))
    assert len(named) > 30
    for path, test in named:
        found = ROOT / path
        assert found.exists(), path
        assert not test or f"def {test}(" in found.read_text(), test
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    assert [row for row in rows if "tests/" not in row] == ["| Point | Page | Test |"] * 5


def test_every_command_is_shown_at_work() -> None:
    """A page other than the generated reference has each command in a block."""
    generated = {ROOT / "docs" / path for path in generator().pages()}
    shown = "".join(page.read_text() for page in documents() if page not in generated)
    words = [" ".join(names) for names, command in generator().walk(main) if command.params]
    assert len(words) >= 7
    missing = [word for word in words if word.count(" ") and f"$ {word} " not in shown]
    assert missing == []


def test_every_field_of_the_plan_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "plan-json.md").read_text()
    planner = pinfold.Planner(pinfold.parse_short_form("1s2c"), pinfold.NodeConfig())
    pod = pod_from_api({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})
    document = plan_document(planner.plan([pod]))
    fields = set(document) | set(document["machine"]) | set(document["config"])
    fields |= set(document["pods"][0]) | set(document["pods"][0]["containers"][0])
    fields |= set(document["numa"][0]) | set(document["numa"][0]["memory"][0])
    assert sorted(field for field in fields if f"`{field}`" not in page) == []


def test_every_field_of_an_explanation_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "explain-json.md").read_text()
    config = pinfold.NodeConfig(topology_manager_policy="best-effort")
    planner = pinfold.Planner(pinfold.parse_short_form("1s2c"), config)
    pod = pod_from_api({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})
    document = explain_document(planner, explain_pod(planner, [pod], "p"))
    fields = set(document) | set(document["containers"][0])
    assert sorted(field for field in fields if f"`{field}`" not in page) == []
