"""The documents about the agent are true: their commands run against a real one.

Blocks marked ``not run: needs an agent`` are left out by ``test_docs`` and run here, ``needs no
agent`` too, with a socket of their own.  Outputs are those of a machine with CPUs 0 and 1;
elsewhere only the statuses are compared.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pinfold.adapters.store.schema import migrate
from pinfold.agent.cri import CRI_PATIENCE
from pinfold.cli import main
from pinfold.config.agent import load_agent_config
from pinfold.config.section import AgentSection, as_written
from pinfold.core.pod.workload import application_environment
from pinfold.core.values.cpuset import CPUSet
from tests.roots import ROOT
from tests.scenes.agent_process import AgentProcess
from tests.scenes.console import Command
from tests.scenes.reader import CPUS, check, configuration_of_the_page, configure, marked
from tests.scenes.waiting import wait_until

REFERENCE = ROOT / "docs" / "reference"
DEPLOY = ROOT / "deploy"
WITH_AGENT, WITHOUT = "needs an agent", "needs no agent"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def documents(reason: str) -> list[Any]:
    """The documents with such commands."""
    return [
        pytest.param(path, id=str(path.relative_to(ROOT)))
        for path in DOCUMENTS
        if f"<!-- not run: {reason} -->" in path.read_text()
    ]


@pytest.mark.parametrize("document", documents(WITH_AGENT))
def test_commands_that_need_an_agent(document: Path, scene: Path, node: AgentProcess) -> None:
    configure(node, configuration_of_the_page(scene))
    node.start()
    for command in marked(document, WITH_AGENT):
        check(command, document, scene, node.socket)


@pytest.mark.parametrize("document", documents(WITHOUT))
def test_commands_that_need_no_agent(document: Path, scene: Path) -> None:
    if len(CPUS) < 2:
        pytest.skip("needs two CPUs")
    for command in marked(document, WITHOUT):
        check(command, document, scene, scene / "run" / "pinfold.sock")


def test_commands_are_told_apart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ always\n```\n"
        "<!-- exit: 3 -->\n<!-- not run: needs an agent -->\n```console\n$ agent\nout\n```\n"
        "<!-- not run: installs -->\n```console\n$ never\n```\n"
    )
    assert marked(page, WITH_AGENT) == [Command(7, "agent", ["out"], 3)]
    assert marked(page, WITHOUT) == []


def test_the_example_configuration_runs(node: AgentProcess) -> None:
    config = yaml.safe_load((DEPLOY / "config.yaml").read_text())
    folder = node.folder
    config["pinfold"] |= {"stateDir": str(node.state), "socket": str(folder / "s.sock")}
    configure(node, {**config, "staticPodPath": str(folder / "manifests")})
    node.start()
    assert node.client.get("/v1/status")["reserved"] == "0"
    assert "note:" not in node.log()


def test_a_file_in_the_folder_is_a_pod(scene: Path, node: AgentProcess) -> None:
    """As the page says: until the file is gone."""
    configure(node, configuration_of_the_page(scene))
    node.start()
    manifest = scene / "try" / "manifests" / "noisy.yaml"
    shutil.copy(scene / "agent" / "noisy.yaml", manifest)
    wait_until(lambda: bool(node.client.get("/v1/pods")["pods"]))
    manifest.unlink()
    wait_until(lambda: not node.client.get("/v1/pods")["pods"])


# ----------------------------------------------------------------------------------- deployment


def test_the_example_configuration_is_accepted_and_complete() -> None:
    loaded = load_agent_config(DEPLOY / "config.yaml")
    assert loaded.notes == ()
    assert loaded.node.cpu_manager_policy == "static"
    text = (DEPLOY / "config.yaml").read_text()
    assert [
        name for name in fields() if not re.search(rf"^  (?:# )?{name}: ", text, re.MULTILINE)
    ] == []
    # What it shows is the default, so that to leave a line out changes nothing.
    assert loaded.own == AgentSection()


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # case counts in units
    parser.read(DEPLOY / "pinfold.service")
    return parser


def test_the_unit_starts_the_agent_with_flags_that_it_has() -> None:
    program, command, *flags = shlex.split(unit()["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("pinfold", "agent")
    with click.Context(main) as context:
        agent = main.get_command(context, "agent")
    assert agent is not None
    parsed = agent.make_context("agent", flags).params
    assert parsed["config"] == Path("/etc/pinfold/config.yaml")


def test_the_unit_keeps_the_containers() -> None:
    service = unit()["Service"]
    assert service["KillMode"] == "process"
    assert service["Type"] == "notify"
    assert service["Delegate"] == "yes"
    assert float(service["WatchdogSec"]) >= 10
    own = AgentSection()
    assert own.record.state_dir == f"/var/lib/{service['StateDirectory']}"
    assert Path(own.api.socket).parent == Path("/run") / service["RuntimeDirectory"]
    # Children inherit these, and the agent needs what they take away.
    harmful = {"ProtectSystem", "ProtectHome", "PrivateTmp", "NoNewPrivileges", "PrivateDevices"}
    assert harmful.isdisjoint(service)
    assert service["ProtectControlGroups"] == "no"
    assert "ProtectKernelTunables" not in service


def test_the_unit_lets_the_agent_wait_for_a_container_runtime() -> None:
    assert {"containerd.service", "crio.service"} <= set(unit()["Unit"]["After"].split())
    assert float(unit()["Service"]["TimeoutStartSec"]) > 1.5 * CRI_PATIENCE


@pytest.mark.parametrize("name", ["pinfold.service", "pinfold-page.service"])
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    copy = tmp_path / name
    copy.write_text((DEPLOY / name).read_text().replace("/usr/local/bin/pinfold", "/bin/sh"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ------------------------------------------------------------------------------------ reference


def fields() -> list[str]:
    return list(as_written(AgentSection()))


def rows(page: str, heading: str) -> dict[str, str]:
    """The first two columns of the first table below a heading."""
    text = (REFERENCE / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\S+)` \| (.*?) \|", text, re.MULTILINE))


def test_every_field_of_the_section_is_described_with_its_default() -> None:
    described = rows("agent-configuration.md", "The section `pinfold`")
    assert list(described) == fields()
    builtins = as_written(AgentSection())
    for name, default in described.items():
        if builtins[name] is None:
            assert "`" not in default, f"{name} has no value unless it is given"
            continue
        assert yaml.safe_load(default.strip("`")) == builtins[name], name


def test_every_flag_of_the_agent_is_described() -> None:
    with click.Context(main) as context:
        agent = main.get_command(context, "agent")
    assert agent is not None
    flags = {flag for parameter in agent.params for flag in parameter.opts}
    flags -= {"--config", "--explain-exit"}
    text = (REFERENCE / "agent-configuration.md").read_text().split("## Flags\n")[1]
    assert set(re.findall(r"^\| `(--\S+)`", text, re.MULTILINE)) == flags


def test_every_table_of_the_record_is_described() -> None:
    text = (REFERENCE / "agent-state.md").read_text()
    database = sqlite3.connect(":memory:", isolation_level=None)
    migrate(database)
    tables = [
        name
        for (name,) in database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'sqlite_sequence'"
        )
    ]
    assert len(tables) >= 5
    for table in tables:
        (row,) = re.findall(rf"^\| `{table}` \| (.*) \|$", text, re.MULTILINE)
        columns = {column[1] for column in database.execute(f"PRAGMA table_info({table})")} - {"id"}
        assert [column for column in sorted(columns) if f"`{column}`" not in row] == [], table


def test_every_variable_is_described() -> None:
    text = (REFERENCE / "agent-state.md").read_text()
    for name in application_environment("default/p", "uid", "c", CPUSet([1]), CPUSet([0])):
        assert f"`{name}`" in text


def test_every_file_of_the_state_directory_is_described(scene: Path, node: AgentProcess) -> None:
    configure(node, configuration_of_the_page(scene))
    node.start()
    assert node.run("apply", str(scene / "agent" / "owner.yaml")).returncode == 0
    node.pids("owner")
    text = (REFERENCE / "agent-state.md").read_text()
    found = {path.name + "/" * path.is_dir() for path in node.state.iterdir()} - {"pods/"}
    assert "pinfold.db" in found
    assert sorted(name for name in found if f"`{name}`" not in text) == []
    (container,) = (node.state / "containers").iterdir()
    assert sorted(p.name for p in container.iterdir() if f"`{p.name}`" not in text) == []
    (file,) = (node.state / "pods").iterdir()
    assert file.stem == node.pod("owner")["uid"]
