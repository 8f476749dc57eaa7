"""The page of the forms in which commands print: ``docs/generate.py`` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from pinfold.cli import main as program
from pinfold.cli.forms import Forms

_PAGE: Final = """
# Forms of output

`-o` says in which form a command prints its answer, in the words of `kubectl`. An unknown form is
refused with a list of those that there are (exit status 2).

| Form | What it is |
|---|---|
| `text` | for people, in the colours that the terminal has; without `-o` it is this |
| `json` | [the document](documents.md) of the answer, indented |
| `yaml` | the same document |
| `jsonpath=EXPR` | what the template EXPR finds in it, [as `kubectl` has it](#templates) |
| `jsonpath-file=FILE` | the same, with the template in a file |
| `name` | names as other commands take them: `pod/web-0`, `pod/trading/db` of a namespace |
| `wide` | a table: a row for each pod, without colours, for `grep` and `awk` |
| `svg`, `html` | a picture, and a page |

"""
_TEMPLATES: Final = """
## Templates

A template is text with paths in braces: `{.pods[*].name}`. It is printed without a newline at its
end. What is not there is nothing, and no error.

| | |
|---|---|
| `{.a.b}`, `{['a']}` | a field; a dot in a name is escaped: `{.devices.example\\.com/gpu}` |
| `{.a[0]}`, `{.a[-1]}`, `{.a[0:2]}`, `{.a[::2]}`, `{.a[*]}` | of a list one, the last, some, all |
| `{.a[0,2]}`, `{.a['b','c']}` | one and another |
| `{.a[?(@.b=="c")]}` | those of a list for which it holds: `==`, `!=`, `<`, `<=`, `>`, `>=` |
| `{.a[?(@.b)]}` | those of a list that have it |
| `{..a}` | wherever it is |
| `{range .a[*]}`...`{end}` | what is between, for each |
| `{"\\n"}`, `{'\\t'}` | a text |
| `{@}`, `{$}` | what is at hand |

Several values are printed with blanks between them; objects and lists as JSON.

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

The dialect is that of `kubectl` (its `jsonpath` is not the one of RFC 9535), with these
differences, all of them where `kubectl` errs or leaves it to chance:

- whole numbers and others are compared, as `@.cpus>1.5`, which `kubectl` refuses;
- a number is printed as in JSON: 1000000.5, where `kubectl` has 1.0000005e+06;
- of an object all values come in the order of the document, where `kubectl` has any;
- a quoted text may end with `\\\\`, and a name may have a backslash that is escaped.
"""


def page() -> str:
    """The forms, and which command has which."""
    return _PAGE + "\n".join(_rows()) + "\n" + _TEMPLATES


def _rows() -> Iterator[str]:
    yield "| Command | Forms, the first without `-o` |"
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
