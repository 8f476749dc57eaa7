"""What manifests of deploy/kubernetes say, as their files are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from pinfold.cli import main
from pinfold.cluster.rights import Right
from tests.cluster.api_server.server import ApiServer
from tests.roots import ROOT


def documents(folder: Path) -> list[dict[str, Any]]:
    """The objects that a kustomization names, and nothing that it does not."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = [name for name in kustomization.get("resources", ()) if name.endswith(".yaml")]
    made = [name for one in kustomization.get("configMapGenerator", ()) for name in one["files"]]
    there = {file.name for file in folder.iterdir()} - {"kustomization.yaml"}
    assert there == {*files, *made}
    return [one for file in files for one in yaml.safe_load_all((folder / file).read_text())]


def the(folder: Path, kind: str) -> dict[str, Any]:
    (found,) = [one for one in documents(folder) if one["kind"] == kind]
    return found


def served(folder: Path) -> dict[str, click.Parameter]:
    """The options of the program that a deployment starts, after a look at what any has.

    That is: the defaults are where its ports and volumes are, and it has the time to end.
    """
    deployment = the(folder / "base", "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    with click.Context(main) as context:
        group = main.get_command(context, container["args"][0])
        assert isinstance(group, click.Group)
        serve = group.get_command(context, container["args"][1])
        assert serve is not None
        options = {name: one for one in serve.params for name in one.opts}
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert options["--listen"].default == f":{ports['webhook']}"
    assert options["--health-listen"].default == f":{ports['health']}"
    assert options["--name"].default == deployment["metadata"]["name"]
    (mount,) = container["volumeMounts"]
    assert options["--certificates"].default == mount["mountPath"]
    probes = {
        container[name]["httpGet"]["path"]
        for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert probes == {"/healthz", "/readyz"}
    own = (folder / "components/own-certificates/kustomization.yaml").read_text()
    assert "value: --make-certificates\n" in own
    assert "--make-certificates" in options
    # A replica answers for --drain seconds, and then finishes what is under way.
    assert spec["terminationGracePeriodSeconds"] > float(str(options["--drain"].default)) + 5
    return options


def written_names(folder: Path) -> set[tuple[str, ...]]:
    """The objects that its roles allow by name: their resource, and how they are called."""
    return {
        (rule["resources"][0], *rule["resourceNames"])
        for part in ("base", "components/own-certificates")
        for one in documents(folder / part)
        for rule in one.get("rules", ())
        if "resourceNames" in rule
    }


def granted(folder: Path, name: str) -> set[tuple[str, str, str, bool, bool]]:
    """The rights that the roles of a folder give, all of them bound to the account ``name``."""
    found = documents(folder)
    roles = {(one["kind"], one["metadata"]["name"]): one for one in found if "rules" in one}
    rights: set[tuple[str, str, str, bool, bool]] = set()
    for binding in (one for one in found if "roleRef" in one):
        (subject,) = binding["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": name, "namespace": name}
        role = roles.pop((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        is_own = binding["kind"] == "RoleBinding"
        assert is_own == (role["kind"] == "Role")
        rights |= {
            (group, resource, verb, is_own, "resourceNames" in rule)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
    assert roles == {}
    return rights


def listed(rights: Iterable[Right]) -> set[tuple[str, str, str, bool, bool]]:
    return {
        (one.group, one.resource, verb, one.is_own, one.is_named)
        for one in rights
        for verb in one.verbs
    }


def asked_for(api: ApiServer) -> set[tuple[str, str, str]]:
    """What a server was asked for, but for pods that tests create: group, resource, verb."""
    found = set()
    for method, path in api.requests:
        parts = path.strip("/").split("/")
        group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
        if rest[0] == "namespaces" and len(rest) > 2:
            rest = rest[2:]
        resource = "/".join([rest[0], *rest[2:]])
        if (method, resource) == ("POST", "pods"):
            continue
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        verb = ("get" if rest[1:] else "list") if method == "GET" else verbs[method]
        found.add((group, resource, verb))
    return found


def listed_rights(rights: Mapping[str, Iterable[Right]]) -> set[tuple[str, str, str]]:
    """All of them: group, resource, verb."""
    return {
        (one.group, one.resource, verb)
        for listed in rights.values()
        for one in listed
        for verb in one.verbs
    }


def kustomizations() -> list[Path]:
    """The folders that can be applied by themselves."""
    found = []
    for file in sorted((ROOT / "deploy" / "kubernetes").rglob("kustomization.yaml")):
        kind = yaml.safe_load(file.read_text())["kind"]
        if kind == "Kustomization":
            found.append(file.parent)
    return found
