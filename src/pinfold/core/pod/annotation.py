"""What an annotation of ours is: its key, whom it is for, how it is read, who carries it out.

The table of them all is :mod:`pinfold.core.pod.annotations`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

DOMAIN: Final = "pinfold.dev"
POD: Final = "pod"
CONTAINER: Final = "container."
SHOWN: Final = 120
"""Characters of a key that are repeated."""

_EVERYWHERE: Final = ("process", "cri", "nri")

T = TypeVar("T")


class AnnotationError(ValueError):
    """An annotation that cannot be read; the message names it and what it may be."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"annotation {key[:SHOWN]}: {problem}")
        self.problem = problem


class Annotation(Struct, Generic[T], frozen=True, kw_only=True):
    """A row.

    ``parse`` reads a value and raises ValueError with what it must be, ``values`` says that in the
    documentation, and ``unsaid`` what holds without the annotation.  ``runtimes`` are those with
    which an agent carries it out; in a version that does not, there are none.  One that is
    ``planned`` is heeded by plans of a node with a section ``pinfold``; a pod for which it cannot
    be read is rejected there.  One that is ``fixed`` says how many CPUs a container owns, and is to
    stay as it was when the pod was created: a quota counts the pod by it.
    Of one that is ``told`` such plans say what would be in force.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    values: str
    unsaid: str
    meaning: str
    runtimes: tuple[str, ...] = _EVERYWHERE
    of_whole_pod: bool = False
    planned: bool = False
    fixed: bool = False
    told: bool = False

    def key(self, holder: str = POD) -> str:
        """The annotation's key for ``pod`` or ``container.NAME``."""
        return f"{DOMAIN}/{self.name}" if self.of_whole_pod else f"{self.name}.{DOMAIN}/{holder}"

    def said(
        self, annotations: Mapping[str, Any], containers: Collection[str] | None = None
    ) -> dict[str, T]:
        """What annotations of a pod say, by holder: ``pod`` or ``container.NAME``.

        ``containers`` is None where not all of them are known.

        Raises:
            AnnotationError: a value that cannot be, or a holder that the pod does not have.
        """
        found = {}
        for key, value in annotations.items():
            if self._is_of(key):
                holder = self._holder(key, containers)
                found[holder] = self._read(key, value)
        return found

    def without(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """The annotations of a pod but for those of this row."""
        return {key: said for key, said in annotations.items() if not self._is_of(key)}

    def of(self, annotations: Mapping[str, Any], container: str) -> T:
        """What holds for a container; what cannot be read says nothing (it was noted)."""
        for holder in (CONTAINER + container, POD):
            if (value := annotations.get(self.key(holder))) is not None:
                try:
                    return self._read(holder, value)
                except AnnotationError:
                    break
        return self.default

    def problem(
        self,
        key: str,
        value: object,
        containers: Collection[str] | None,
        runtime: str | None,
        *,
        own: bool = False,
    ) -> str | None:
        """What is to be noted of one annotation of this row; see :func:`annotation_problems`."""
        if runtime is None and own and self.planned:
            return None
        try:
            self._holder(key, containers)
            said = self._read(key, value)
        except AnnotationError as error:
            return error.problem
        if not self.runtimes:
            return "is not carried out by this version"
        if runtime is None and self.planned and said != self.default:
            return "is heeded where the configuration has a section pinfold"
        if runtime is not None and runtime not in self.runtimes:
            return f"is carried out with runtime {' or '.join(self.runtimes)} only"
        return None

    def _is_of(self, key: str) -> bool:
        """Whether an annotation is one of this row."""
        if self.of_whole_pod:
            return key == self.key()
        return key.partition("/")[0] == f"{self.name}.{DOMAIN}"

    def _holder(self, key: str, containers: Collection[str] | None) -> str:
        if key == self.key():
            return POD
        holder = key.partition("/")[2]
        name = holder.removeprefix(CONTAINER)
        if self.of_whole_pod or name in {"", holder}:
            raise AnnotationError(key, f"must be {self.key()} or {self.key(CONTAINER)}NAME")
        if containers is not None and name not in containers:
            raise AnnotationError(
                key,
                f"the pod has no container {name[:63]!r}; it has {', '.join(sorted(containers))}",
            )
        return holder

    def _read(self, key: str, value: object) -> T:
        text = isinstance(value, str)
        try:
            found = self.parse(str(value))
        except ValueError as error:
            raise AnnotationError(
                key, f"{error}{'' if text else ' (a string: quote it)'}"
            ) from None
        if not text:
            raise AnnotationError(key, "must be a string (quote it)")
        return found
