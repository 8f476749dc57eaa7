"""Huge pages: the names of their sizes, and which size a volume of theirs has.

A size has three spellings: the resource ``hugepages-2Mi``, the runtime's and the kernel's cgroup
files' ``2MB``, and the kernel's folder ``hugepages-2048kB``.  Sizes are in bytes here.

Source: upstream ``pkg/apis/core/v1/helper``, ``pkg/volume/emptydir`` and
``opencontainers/cgroups`` (Kubernetes 1.34).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from pinfold.core.pod.pod import HUGEPAGES_PREFIX, Pod, is_hugepages
from pinfold.core.values.quantity import Format, Quantity, QuantityError

MEDIUM_MEMORY: Final = "Memory"
"""The medium of an ``emptyDir`` that is in memory."""

MEDIUM_HUGEPAGES: Final = "HugePages"
"""The medium of an ``emptyDir`` of the one huge page size that its pod requests."""

_MEDIUM_PREFIX: Final = "HugePages-"
_FOLDER_PREFIX: Final = "hugepages-"
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")


class HugePagesError(ValueError):
    """A name, a medium or a size that does not say what it should; the message is upstream's."""


# ------------------------------------------------------------------------------------------ names


def resource_name(size: int) -> str:
    """The resource of pages of ``size`` bytes.

    >>> resource_name(2 << 20)
    'hugepages-2Mi'
    """
    return f"{HUGEPAGES_PREFIX}{Quantity(size, 0, Format.BINARY_SI)}"


@lru_cache(maxsize=256)
def page_quantity(name: str) -> Quantity:
    """The page size that a resource's name says; raises HugePagesError."""
    if not is_hugepages(name):
        raise HugePagesError(f"resource name: {name} is an invalid hugepage name")
    return _quantity(name.removeprefix(HUGEPAGES_PREFIX))


def page_size(name: str) -> int | None:
    """The page size in bytes that a resource's name says, None where it says none.

    A fraction is rounded up, as the kubelet does; the API server refuses such names.
    """
    try:
        return page_quantity(name).value()
    except HugePagesError:
        return None


def is_divisible(name: str, amount: Quantity) -> bool:
    """Whether an amount is a whole number of pages (negative ones too: the sign is asked apart).

    It never is where the name says no size, or one that no page can have.  A fraction of a byte
    is rounded away from zero first.
    """
    try:
        size = page_quantity(name)
    except HugePagesError:
        return False
    if size.sign <= 0 or size.milli_value() % 1000:
        return False
    return amount.value() % size.value() == 0


def unit_name(size: int) -> str:
    """A page size as container runtimes and the cgroup files of the kernel name it.

    >>> unit_name(2 << 20), unit_name(1 << 30)
    ('2MB', '1GB')

    Raises:
        HugePagesError: 1024 units or more that the next unit cannot say without a fraction.
    """
    number, unit = size, 0
    while number >= 1024 and unit + 1 < len(_UNITS):
        if number % 1024:
            raise HugePagesError(
                f"size: {number}{_UNITS[unit]} must be guaranteed to divisible into the "
                "largest units"
            )
        number //= 1024
        unit += 1
    return f"{number}{_UNITS[unit]}"


def folder_name(size: int) -> str:
    """The kernel's folder of a page size in sysfs, such as ``hugepages-2048kB``."""
    return f"{_FOLDER_PREFIX}{size >> 10}kB"


def folder_size(name: str) -> int | None:
    """The page size in bytes of a folder in sysfs, None for another folder."""
    digits = name.removeprefix(_FOLDER_PREFIX).removesuffix("kB")
    if name != f"{_FOLDER_PREFIX}{digits}kB" or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) << 10


# ---------------------------------------------------------------------------------------- volumes


def is_hugepage_medium(medium: str) -> bool:
    """Whether an ``emptyDir`` of this medium is made of huge pages."""
    return medium == MEDIUM_HUGEPAGES or medium.startswith(_MEDIUM_PREFIX)


def medium_page_quantity(medium: str) -> Quantity:
    """The page size that a medium such as ``HugePages-2Mi`` says.

    Raises:
        HugePagesError: another medium, one that says no size, or no quantity in it.
    """
    if not is_hugepage_medium(medium):
        raise HugePagesError(f"medium: {medium} is not a hugepage medium")
    if medium == MEDIUM_HUGEPAGES:
        raise HugePagesError(f"medium: {medium} doesn't have size information")
    return _quantity(medium.removeprefix(_MEDIUM_PREFIX))


def volume_page_quantity(medium: str, pod: Pod) -> Quantity:
    """The page size of an ``emptyDir`` of a medium of huge pages in a pod.

    A medium with a size must have a request of pages of that size beside it, in any container or
    in the pod's own ``resources``; one without takes the only size that is requested.  A request
    of nothing counts.

    Raises:
        HugePagesError: another medium, no request, or requests of several sizes; the kubelet's
            words.
    """
    wanted = None if medium == MEDIUM_HUGEPAGES else medium_page_quantity(medium)
    found: Quantity | None = None
    for size in _requested_sizes(pod):
        if wanted is None:
            if found is not None and found != size:
                raise HugePagesError(
                    f"medium: {medium} can't be used if container requests multiple huge page sizes"
                )
            found = size
        elif size == wanted:
            found = size
    if found is None:
        raise HugePagesError(
            f"medium {medium}: hugePages storage requested, but there is no resource request "
            "for huge pages"
        )
    return found


def page_size_option(medium: str, pod: Pod) -> str:
    """The option of the hugetlbfs mount for such a volume, such as ``pagesize=2Mi``.

    Raises:
        HugePagesError: as :func:`volume_page_quantity`.
    """
    return f"pagesize={volume_page_quantity(medium, pod)}"


def _requested_sizes(pod: Pod) -> Iterator[Quantity]:
    lists = [container.requests for container in (*pod.containers, *pod.init_containers)]
    if pod.resources is not None:
        lists.append(pod.resources.requests)
    for requests in lists:
        for name in requests:
            if is_hugepages(name):
                yield page_quantity(name)


def _quantity(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except QuantityError as error:
        raise HugePagesError(str(error)) from None
