"""The options of the group ``cache``: which classes there are, and what each has."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

CLASS_NAME: Final = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
"""What the name of a class is like."""

NO_CLASS: Final = "none"
"""What a pod says that wants no class."""

_ClassName = Annotated[
    str, Meta(pattern=f"^{CLASS_NAME}$", description="the name of a class, such as fast")
]
_Ways = Annotated[
    str,
    Meta(
        pattern="^([1-9][0-9]?|(100|[1-9][0-9]?)%)?$",
        description='ways or a share of them, such as "4" or 25%',
    ),
]


class CacheClass(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What the containers of a class have of the caches; what is not said is shared by all."""

    l3: _Ways = ""
    """Ways of each level 3 cache at which a container has CPUs, or a share of them: ``"4"``,
    ``25%``."""
    l3_code: _Ways = ""
    """Where code and data are apart (mount option ``cdp``), those for code."""
    l3_data: _Ways = ""
    """Those for data."""
    l2: _Ways = ""
    """The same of each level 2 cache."""
    l2_code: _Ways = ""
    """Those for code (mount option ``cdpl2``)."""
    l2_data: _Ways = ""
    """Those for data."""
    memory_bandwidth: Annotated[
        str,
        Meta(
            pattern="^((100|[1-9][0-9]?)%|[1-9][0-9]{0,6}MBps)?$",
            description="a limit such as 50% or 4000MBps",
        ),
    ] = ""
    """The limit of memory bandwidth: ``50%``, or ``4000MBps`` where the machine counts so."""
    each: bool = True
    """Whether each container has its own; ``false``: the containers of the class share one."""


class CacheOptions(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parts of the caches, and of the memory bandwidth, for those who own CPUs (resctrl)."""

    use: bool = False
    """Whether it is done at all."""
    mount: Annotated[
        str,
        Meta(
            pattern="^(never|plain|(cdp|cdpl2|mba_MBps)(,(cdp|cdpl2|mba_MBps)){0,2})$",
            description="never, plain, or mount options such as cdp or cdp,mba_MBps",
        ),
    ] = "never"
    """Whether resctrl is mounted where it is not: ``never``, ``plain``, or with these options."""
    classes: dict[_ClassName, CacheClass] = {}
    """The classes by name."""
    when_full: Literal["share", "reject"] = "share"
    """What becomes of a pod for whose class no id or ways are left: its container shares what all
    others have, or the pod is not admitted."""
    exclusive: Annotated[
        str,
        Meta(pattern=f"^({CLASS_NAME})?$", description='the name of a class, or ""'),
    ] = ""
    """The class of containers with exclusive CPUs whose pod does not say; "": none."""

    def __post_init__(self) -> None:
        """See that what is named is there; raises ValueError."""
        if NO_CLASS in self.classes:
            raise ValueError(f"{NO_CLASS} is no name of a class: pods say it to have none")
        if self.exclusive and self.exclusive not in self.classes:
            listed = ", ".join(self.classes) or "none"
            raise ValueError(f"exclusive: there is no class {self.exclusive}, there is {listed}")
