"""``pinfold convert``: classes of devices as objects of Dynamic Resource Allocation, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from pinfold.adapters.kubernetes.files import (
    ManifestError,
    manifest_documents,
    printable,
)
from pinfold.cli.forms import Output, output_option
from pinfold.cli.output import Refused, input_errors, print_text
from pinfold.cli.progress_line import progress_line
from pinfold.core.dra.convert import Converted, to_classes, to_dra
from pinfold.core.dra.names import DEFAULT_DRIVER
from pinfold.core.dra.objects import ConvertError, InvalidError, Located, located
from pinfold.formats.yaml_writing import written_yaml

_DRA: Final = "dra"
_CLASSES: Final = "classes"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--to",
    "wanted",
    type=click.Choice((_DRA, _CLASSES)),
    default=_DRA,
    show_default=True,
    help="What to write: dra for DeviceClasses, ResourceSlices and claims, classes for "
    "ResourceClasses, ComputeResources and pods that name classes.",
)
@click.option(
    "--driver",
    metavar="NAME",
    help="The DRA driver of the devices, in whose domain properties are attributes.  "
    f"[default: {DEFAULT_DRIVER}; on the way back what was converted here says it]",
)
@click.option("--strict", is_flag=True, help="Refuse where anything could not be carried over.")
@output_option("yaml", "json")
def convert(
    *, files: tuple[str, ...], wanted: str, driver: str | None, strict: bool, output: Output
) -> None:
    """Convert classes of devices to DRA objects, or back.

    DRA is Kubernetes' Dynamic Resource Allocation. FILE is a file, a folder of files, or - for
    standard input. ResourceClasses become DeviceClasses, ComputeResources become ResourceSlices,
    pods that ask for classes get claims, and quotas count these; everything else stays as it is.
    The result is one stream of manifests. Standard error says what could not be converted.
    """
    with input_errors(ManifestError, InvalidError), progress_line("converting"):
        objects = tuple(_objects(files))
        try:
            converted = (
                to_dra(objects, driver or DEFAULT_DRIVER)
                if wanted == _DRA
                else to_classes(objects, driver)
            )
        except InvalidError:
            raise
        except ConvertError as error:
            raise Refused(printable(str(error))) from None
    if not converted.lost and list(converted.objects) == [one.manifest for one in objects]:
        other = _CLASSES if wanted == _DRA else _DRA
        click.echo(f"• there was nothing to convert; --to {other} is the other way", err=True)
    for note in converted.lost:
        click.echo(f"• {printable(note)}", err=True)
    if strict and converted.lost:
        raise Refused("not all of it can be carried over (--strict)")
    _print(converted, output)


def _objects(files: tuple[str, ...]) -> Iterator[Located]:
    for place, document in manifest_documents(files):
        yield from located(place, document.content)


def _print(converted: Converted, output: Output) -> None:
    if output == "yaml":
        print_text(written_yaml(converted.objects))
    else:
        output.tell({"apiVersion": "v1", "kind": "List", "items": converted.objects})
