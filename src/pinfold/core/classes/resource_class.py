"""Classes of resources: selectors of properties, and which class wins where several select.

Source: the design proposal "New Resource API" (kubernetes/community#782), ``ResourceClass``: the
classes with the highest priority among those that match have a resource, several where they are
equal; by its raw name it can always be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from pinfold.core.classes.compute_resource import Properties
from pinfold.core.values.quantity import Quantity, QuantityError

IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "In", "NotIn", "Exists", "DoesNotExist"
SETS: Final = (IN, NOT_IN)
PRESENCE: Final = (EXISTS, DOES_NOT_EXIST)
ORDER: Final = ("Gt", "GtEq", "Lt", "LtEq")
OPERATORS: Final = (*SETS, *PRESENCE, *ORDER)

CLUSTERLEVEL: Final = "CLUSTERLEVEL"
NODELEVEL: Final = "NODELEVEL"


class Requirement(Struct, frozen=True):
    """One requirement of a selector: a property, an operator, and values.

    ``In`` and ``NotIn`` compare texts, as label selectors do, and who lacks the property is not
    in any set.  ``Gt``, ``GtEq``, ``Lt``, ``LtEq`` compare quantities with one value; what is no
    quantity is neither more nor less.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, properties: Properties) -> bool:
        """Whether a resource with these properties fulfils it."""
        value = properties.get(self.key)
        if self.operator in PRESENCE:
            return (value is not None) == (self.operator == EXISTS)
        if self.operator in SETS:
            return (value in self.values) == (self.operator == IN)
        if value is None:
            return False
        try:
            has, bound = Quantity.parse(value), Quantity.parse(self.values[0])
        except QuantityError:
            return False
        match self.operator:
            case "Gt":
                return has > bound
            case "GtEq":
                return has >= bound
            case "Lt":
                return has < bound
            case _:
                return has <= bound


class ProvisionConfig(Struct, frozen=True):
    """What those who provide nodes need to know of a class (``ProvisionConfig``).

    Attributes:
        resource_type: ``CLUSTERLEVEL`` resources belong to no node, and are left out where it is
            asked whether a pod fits one.
        capacity_node_label_keys: labels of a node that say how many there are to be.
        provision_seconds: how long a new node may take until it tells them; None: nobody knows.
    """

    resource_type: str = NODELEVEL
    capacity_node_label_keys: tuple[str, ...] = ()
    provision_seconds: int | None = None


class ResourceClass(Struct, frozen=True):
    """A portable name for resources that have some properties.

    ``selectors``: a resource matches one that matches all requirements of any of them; a class
    without any selects nothing.  ``last_raw_name`` is what pods that asked for it were given last,
    as its status says; "": nothing yet.
    """

    name: str
    selectors: tuple[tuple[Requirement, ...], ...] = ()
    priority: int = 0
    provision: ProvisionConfig = ProvisionConfig()
    last_raw_name: str = ""

    def matches(self, properties: Properties) -> bool:
        """Whether it selects what has these properties, other classes aside."""
        return any(
            bool(selector) and all(one.matches(properties) for one in selector)
            for selector in self.selectors
        )

    @property
    def is_cluster_level(self) -> bool:
        """Whether its resources belong to no node."""
        return self.provision.resource_type == CLUSTERLEVEL


def classes_of(
    classes: Iterable[ResourceClass], properties: Properties
) -> tuple[ResourceClass, ...]:
    """The classes by which a resource can be asked for: the first in priority that match it."""
    matching = [one for one in classes if one.matches(properties)]
    highest = max((one.priority for one in matching), default=0)
    return tuple(one for one in matching if one.priority == highest)
