"""A run's values as bytes, for another process; views of maps that nobody changes among them."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pinfold.planning.simulation.experiment.specification import RunSpec


class ParcelError(ValueError):
    """Values that cannot be sent to another process; the message names what."""


def packed(spec: RunSpec) -> bytes:
    """What :func:`unpacked` reads.

    Raises:
        ParcelError: somebody's own source of arrivals cannot be sent.
    """
    written = io.BytesIO()
    try:
        _Pickler(written, protocol=5).dump(spec)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ParcelError(
            f"{spec.configuration}: cannot be sent to another process ({error}); a source of "
            "arrivals has to be of a class at the top of a module"
        ) from None
    return written.getvalue()


def unpacked(data: bytes) -> RunSpec:
    """The values of :func:`packed`, which only processes of our own write."""
    spec = pickle.loads(data)  # noqa: S301 - from the process that has started this one
    if not isinstance(spec, RunSpec):
        raise TypeError(f"a run was expected, and {type(spec).__name__} came")
    return spec


class _Pickler(pickle.Pickler):
    """Knows views, too; nothing is registered for others."""

    dispatch_table = copyreg.dispatch_table | {
        MappingProxyType: lambda view: (_view, (dict(view),))
    }


def _view(of: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(of)
