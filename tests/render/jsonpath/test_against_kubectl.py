"""The real kubectl prints the same of the same document: texts, and the words of its errors."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from pinfold.render.jsonpath.parts import TemplateError
from pinfold.render.jsonpath.printing import printed
from pinfold.render.jsonpath.reading import read_template
from tests.scenes.kubectl import Kubectl, needs_kubectl

DOCUMENT: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Zoo",
    "metadata": {"name": "z", "labels": {"a.b/c": "d", "seen": "yes"}},
    "nothing": None,
    "flag": True,
    "half": 1.5,
    "big": 12345678901234,
    "below": -3,
    "empty": [],
    "bare": {},
    "text": 'hé<&>"q',
    "pods": [
        {"name": "p1", "cpus": 2, "x": "y", "m": {"b": [1, 2]}},
        {"name": "p2", "cpus": 4, "m": {"z": [1, 2, [3]]}},
        {"name": "p3", "cpus": 8, "x": "q q"},
    ],
}

PRINTED = (
    "a}b",
    ".kind",
    "{.kind}",
    "{$.kind}{@.kind}",
    "{.nothing}",
    "{.nothing.x}{.nothing[0]}{.nothing.*}",
    "{.flag} {.half} {.big} {.below}",
    "{.empty}{.bare}",
    "{.text}",
    "{@}",
    "{}",
    "{.pods}",
    "{.metadata}",
    "{.missing}{.missing.more}{.kind.x}{.pods.name}",
    "{.pods[*].name}",
    "{.pods.*.name}",
    "{.pods[0].name}{.pods[-1].name}",
    "{.pods[]}",
    "{.pods[:].name}",
    "{.pods[-2:].name}",
    "{.pods[0:2].name}",
    "{.pods[:2].name}",
    "{.pods[::2].name}",
    "{.pods[1:1].name}",
    "{.pods[5:5].name}",
    "{.pods[0,2].name}",
    "{.pods[1, 2].name}",
    "{.pods[0]['name','cpus']}",
    "{[ 'text' , 'kind' ]}",
    "{['metadata.name']}",
    "{.metadata.labels['a\\.b/c']}",
    "{.metadata.labels.a\\.b/c}",
    "{.pods[*].m.*}",
    "{.pods[?(@.x)].name}",
    '{.pods[?(@.x=="y")].name}',
    "{.pods[?(@.name=='p1')].cpus}",
    '{.pods[?(@.x!="y")].name}',
    "{.pods[?(@.cpus>3)].name}",
    "{.pods[?(@.cpus<=4)].name}",
    '{.pods[?(@.name>"p1")].name}',
    "{.pods[?(@.name==@.name)].name}",
    '{.pods[?("p2"==@.name)].name}',
    "{.pods[?(@.flag==true)].name}",
    "{.pods[?(@.name=='a)b')].cpus}",
    "{.pods..b[1]}",
    "{.pods[0].m..}",
    '{range .pods[*]}{.name}{"\\t"}{.cpus}{"\\n"}{end}{.kind}',
    "{range .pods[*]}{range .m.z[*]}{@}-{end}{.name};{end}",
    "{range .pods[*].name}{@}|{end}",
    "{range .empty[*]}{.name}{end}{.kind}",
    "{range .missing}x{end}y",
    "{range .pods[*]}{.name}",
    "{range .kind}{@}{end}",
    '{"a" "b"}{1}{2.5}{true}',
    '{"\\u00e9\\x41\\101\\\\ "}',
    "{'it\\'s' }",
    "{.metadata.name}}",
    "{.kind#}",
    "{.}",
)
"""Maps of which all is taken have one key: which is first kubectl leaves to chance."""

REFUSED = {
    "{.kind": "unclosed action",
    "{.pods[*": "unterminated array",
    "{.pods[a]}": "invalid array index a",
    "{.pods[ 1 ]}": "invalid array index  1 ",
    '{["kind"]}': 'invalid array index "kind"',
    "{.pods[-]}": "array index - is not a number",
    '{.pods[?(@.x=="y"].name}': "unterminated filter",
    '{.pods[?(@.x=="y").name}': "unclosed array expect ]",
    "{.pods[?(@.x==y)].name}": "unrecognized identifier y",
    "{.pods[?(@.cpus=<3)].name}": "unrecognized filter operator =<",
    "{.pods[?(!@.x)].name}": "unrecognized character in action",
    '{"a}': "unterminated quoted string",
    '{"a\\qb"}': 'unquote string "a\\qb" error invalid syntax',
    "{1.2.3}": "cannot parse number 1.2.3",
    "{-}": "cannot parse number -",
    "{\t.kind}": "unrecognized character in action",
    "{{.kind}}": "unrecognized character in action",
    "{..*}": "unrecognized character in action",
    "{....name}": "invalid multiple recursive descent",
    "{end}": "not in range, nothing to end",
    "{word}": "unrecognized identifier word",
    "{.pods[3].name}": "array index out of bounds: index 3, length 3",
    "{.pods[-7].name}": "array index out of bounds: index -4, length 3",
    "{.pods[0:10].name}": "array index out of bounds: index 9, length 3",
    "{.pods[2:1].name}": "starting index 2 is greater than ending index 1",
    "{.pods[-1:0].name}": "starting index 2 is greater than ending index 0",
    "{.pods[::0].name}": "step must be > 0",
    "{.kind[0]}": "string is not array or slice",
    "{.flag[0]}": "bool is not array or slice",
    "{.kind[?(@.a)]}": "is not array or slice and cannot be filtered",
    "{.pods[?(@.x==1)].name}": "incompatible types for comparison",
    '{.pods[?(@.cpus=="2")].name}': "incompatible types for comparison",
    "{.pods[?(@.m==1)].name}": "invalid type for comparison",
}


def asked(folder: Path, template: str) -> subprocess.CompletedProcess[str]:
    """What kubectl makes of the document, which no server knows: it is only labelled here."""
    file = folder / "zoo.json"
    file.write_text(json.dumps(DOCUMENT))
    words = ("label", "--local", "-f", str(file), "seen=yes", "-o", f"jsonpath={template}")
    return Kubectl(folder).tried(*words)


@needs_kubectl
@pytest.mark.parametrize("template", PRINTED)
def test_kubectl_prints_the_same(tmp_path: Path, template: str) -> None:
    done = asked(tmp_path, template)
    assert (done.returncode, done.stdout) == (0, printed(read_template(template), DOCUMENT))


@needs_kubectl
@pytest.mark.parametrize("template", REFUSED)
def test_kubectl_refuses_the_same_in_these_words(tmp_path: Path, template: str) -> None:
    done = asked(tmp_path, template)
    assert done.returncode != 0
    assert REFUSED[template] in done.stderr
    with pytest.raises(TemplateError) as raised:
        printed(read_template(template), DOCUMENT)
    assert REFUSED[template] in raised.value.problem
