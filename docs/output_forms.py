"""The page of the forms in which commands print: ``docs/generate.py`` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from pinfold.cli import main as program
from pinfold.cli.forms import Forms

_PAGE: Final = """
# Forms of output

`-o` chooses the form in which a command prints its answer. The names of the forms are those of
`kubectl`. An unknown form is refused with a list of the known ones (exit status 2).

| Form | What it is |
|---|---|
| `text` | for people, in colours on a terminal; the default |
| `json` | [the document](documents.md) of the answer, indented |
| `yaml` | the same document |
| `jsonpath=EXPR` | the parts of it that the template EXPR selects, [as in `kubectl`](#templates) |
| `jsonpath-file=FILE` | the same, with the template in a file |
| `name` | names that other commands take: `pod/web-0`, or with a namespace `pod/trading/db` |
| `wide` | a table with one row for each pod, without colours, for `grep` and `awk` |
| `svg`, `html` | a picture, and a page for a browser |

"""
_TEMPLATES: Final = """
## Templates

A template is text with paths in braces: `{.pods[*].name}`. It is printed without a newline at its
end. A path that the document does not have prints nothing, and is no error.

| | |
|---|---|
| `{.a.b}`, `{['a']}` | a field; a dot in a name is escaped: `{.devices.example\\.com/gpu}` |
| `{.a[0]}`, `{.a[-1]}`, `{.a[0:2]}`, `{.a[::2]}`, `{.a[*]}` | of a list: one, the last, some, all |
| `{.a[0,2]}`, `{.a['b','c']}` | several items or fields |
| `{.a[?(@.b=="c")]}` | the items that fulfil a condition: `==`, `!=`, `<`, `<=`, `>`, `>=` |
| `{.a[?(@.b)]}` | the items that have this field |
| `{..a}` | this field at any depth |
| `{range .a[*]}`...`{end}` | the text between, once for each item |
| `{"\\n"}`, `{'\\t'}` | literal text |
| `{@}`, `{$}` | the current item, and the whole document |

Several values are separated by blanks. Objects and lists are printed as JSON.

```console
$ pinfold plan --machine 2s8c2t pods -o jsonpath='{range .pods[*]}{.name}{"\\t"}{.qos}{"\\n"}{end}'
```

An error points at the place:

<!-- exit: 2 -->
```console
$ pinfold plan --machine 2s8c2t pods -o jsonpath='{.pods[a].name}'
Error: -o jsonpath: invalid array index a
  {.pods[a].name}
         ^
```

The dialect is that of `kubectl`, which is not the one of RFC 9535. There are four differences, all
in places where `kubectl` has a fault or gives an answer by chance:

- a whole number can be compared with a decimal one, as in `@.cpus>1.5`, which `kubectl` refuses;
- numbers are printed as in JSON: 1000000.5, where `kubectl` prints 1.0000005e+06;
- the values of an object come in the order of the document; in `kubectl` they come in any order;
- a quoted text may end with `\\\\`, and a name may contain an escaped backslash.
"""


def page() -> str:
    """The forms, and which command has which."""
    return _PAGE + "\n".join(_rows()) + "\n" + _TEMPLATES


def _rows() -> Iterator[str]:
    yield "| Command | Forms; the first is the default |"
    yield "|---|---|"
    for name, forms in _forms(program, click.Context(program), ""):
        yield f"| `pinfold {name}` | {', '.join(f'`{form}`' for form in forms)} |"


def _forms(
    group: click.Group, context: click.Context, above: str
) -> Iterator[tuple[str, list[str]]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _forms(command, context, f"{above}{name} ")
        for option in command.params if command is not None else ():
            if isinstance(option.type, Forms):
                first = str(option.default)
                yield f"{above}{name}", sorted(option.type.choices, key=lambda one: one != first)
