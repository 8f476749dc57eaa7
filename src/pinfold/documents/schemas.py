"""JSON Schemas (2020-12) of the documents, made of their Structs.

The names, the types and the words come from msgspec; what a field means is the docstring under it.
A schema says what is written: every field that is never left out is required.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, get_args

from msgspec import NODEFAULT, UNSET, Struct
from msgspec.json import schema_components
from msgspec.structs import FieldInfo, fields

from pinfold.documents.api import (
    AppliedPods,
    DecidedPod,
    Drifts,
    Error,
    Exit,
    History,
    PodDocument,
    PodFacts,
    PodList,
    Resize,
    ResizeAnswer,
    Run,
)
from pinfold.documents.assignment import Assignment
from pinfold.documents.audit import Audit
from pinfold.documents.cluster_plan import ClusterPlan
from pinfold.documents.explanation import Explanation, Explanations
from pinfold.documents.hugepages import HugepageChange, HugepagePools
from pinfold.documents.live.event import Event
from pinfold.documents.live.published import PublishedNode
from pinfold.documents.live.scene import Scene, ScenePage
from pinfold.documents.machine import Machine
from pinfold.documents.move_plan import MovePlan
from pinfold.documents.node import Node
from pinfold.documents.observation import Observation
from pinfold.documents.plan import Comparison, Plan
from pinfold.documents.profile import ProfileCheck
from pinfold.documents.readiness import Readiness
from pinfold.documents.records import VERSION, Document, Record
from pinfold.documents.shield import Shield
from pinfold.documents.simulation.experiment import Experiment
from pinfold.documents.simulation.results import Simulation
from pinfold.documents.state import StateCheck, StateFile, StateVersions
from pinfold.documents.status import Status


class Published(Struct, frozen=True):
    """A document that others read or write: its form, and where it is met."""

    form: type[Record]
    where: str


DOCUMENTS: Final[Mapping[str, Published]] = {
    "applied": Published(AppliedPods, "`pinfold apply -o json`"),
    "assignment": Published(
        Assignment, "`assignment.json`, which tells a container its exclusive CPUs"
    ),
    "audit": Published(Audit, "`pinfold audit -o json`"),
    "cluster-plan": Published(ClusterPlan, "`pinfold plan --node NAME=MACHINE -o json`"),
    "comparison": Published(Comparison, "`pinfold plan --compare FILE -o json`"),
    "decided": Published(DecidedPod, "answer of `POST /v1/pods` and `POST /v1/run`"),
    "drifts": Published(Drifts, "answer of `POST /v1/reconcile`"),
    "error": Published(Error, "every answer of the API from 400 on"),
    "event": Published(Event, "`GET /v1/events`"),
    "exit": Published(Exit, "body of `POST /v1/run/{uid}/exit`"),
    "experiment": Published(Experiment, "the file that `pinfold simulate` reads"),
    "explanation": Published(
        Explanation, "`pinfold explain -o json`, `GET /v1/explain/{namespace}/{name}`"
    ),
    "explanations": Published(
        Explanations, "`pinfold explain MANIFEST... -o json`, where not one pod is named"
    ),
    "facts": Published(PodFacts, "the file from which an application learns its CPUs"),
    "history": Published(History, "`GET /v1/history`"),
    "hugepage-change": Published(
        HugepageChange, "`pinfold hugepages allocate` and `release` with `-o json`"
    ),
    "hugepages": Published(HugepagePools, "`pinfold hugepages show -o json`"),
    "machine": Published(
        Machine, "`pinfold topology -o json`, `GET /v1/machine`; `--machine` understands it"
    ),
    "move-plan": Published(
        MovePlan,
        "`pinfold rebalance -o json`; part of a plan, of an explanation, of the record of moves",
    ),
    "node": Published(Node, "`GET /v1/node`"),
    "observation": Published(Observation, "`GET /v1/observation`"),
    "plan": Published(Plan, "`pinfold plan -o json`"),
    "pod": Published(PodDocument, "`GET /v1/pods/{namespace}/{name}`"),
    "pods": Published(PodList, "`GET /v1/pods`"),
    "profile-check": Published(ProfileCheck, "`pinfold profile check -o json`"),
    "published-node": Published(
        PublishedNode, "`node.json` of a node's ConfigMap in the namespace `pinfold-nodes`"
    ),
    "readiness": Published(Readiness, "`pinfold readiness -o json`"),
    "resize": Published(Resize, "body of `PATCH /v1/pods/{namespace}/{name}`"),
    "resized": Published(
        ResizeAnswer, "`pinfold resize -o json`, answer of `PATCH /v1/pods/{namespace}/{name}`"
    ),
    "run": Published(Run, "body of `POST /v1/run`"),
    "scene": Published(
        Scene, "how a node is drawn: `GET /v1/scene` of `pinfold serve`, and part of its events"
    ),
    "scene-page": Published(ScenePage, "what a page of `pinfold plan -o html` holds"),
    "shield": Published(Shield, "`pinfold shield -o json`"),
    "simulation": Published(Simulation, "`pinfold simulate -o json`"),
    "state-check": Published(StateCheck, "`pinfold state check -o json`"),
    "state-versions": Published(StateVersions, "`pinfold state versions -o json`"),
    "state-file": Published(StateFile, "`pinfold state show -o json`"),
    "status": Published(Status, "`pinfold status -o json`, `GET /v1/status`"),
}


def json_schema(name: str) -> dict[str, Any]:
    """The schema of a document by its name, one of :data:`DOCUMENTS`."""
    form = DOCUMENTS[name].form
    components = component_schemas((form,), "#/$defs/{name}")
    whole = components.pop(form.__name__)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}
    return schema | {"$defs": components} if components else schema


def component_schemas(
    forms: Iterable[type[Record]], reference: str = "#/components/schemas/{name}"
) -> dict[str, dict[str, Any]]:
    """The schemas of some records and of all that they are made of, by name."""
    forms = tuple(forms)
    _, components = schema_components(forms, ref_template=reference)
    known = {form.__name__: form for form in _reached(forms)}
    return {name: _told(schema, known[name]) for name, schema in sorted(components.items())}


def _told(schema: dict[str, Any], form: type[Struct]) -> dict[str, Any]:
    """A schema with what msgspec cannot know: what is always there, and what it means."""
    properties, meanings = schema["properties"], _meanings(form)
    if issubclass(form, Document):
        properties["version"] = {"const": VERSION}
    config = form.__struct_config__
    # What others write is refused where it has more, and may leave out what has a default.
    is_written_by_others = config.forbid_unknown_fields
    omits = config.omit_defaults or is_written_by_others
    left_out = {field.encode_name for field in fields(form) if _may_be_missing(field, omits=omits)}
    for field in fields(form):
        told = properties[field.encode_name]
        if not is_written_by_others or not told.get("default"):
            told.pop("default", None)
        if meaning := meanings.get(field.name):
            told["description"] = meaning
    return schema | {"required": [name for name in properties if name not in left_out]}


def _may_be_missing(field: FieldInfo, *, omits: bool) -> bool:
    # msgspec keeps an empty container that is the default as its factory.
    has_default = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
    return field.default is UNSET or (omits and has_default)


def _reached(kinds: Iterable[Any]) -> Iterator[type[Struct]]:
    """The records that some types are made of; two that have one name are not of one document."""
    seen: set[Any] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, Struct):
            if kind not in seen:
                seen.add(kind)
                yield kind
                waiting += (field.type for field in fields(kind))
        else:
            waiting += get_args(kind)


def _meanings(form: type[Struct]) -> dict[str, str]:
    """The docstring under each field, those of the forms that it goes on from too."""
    found: dict[str, str] = {}
    for one in reversed(form.__mro__):
        if one.__module__.startswith(__package__):
            found |= _docstrings(one.__module__).get(one.__name__, {})
    return found


@cache
def _docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """Class -> field -> the text under it."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {one.name: dict(_under_fields(one.body)) for one in classes}


def _under_fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split()).replace("``", "`")
