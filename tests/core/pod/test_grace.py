"""For how long an application is told: the field, else the annotation, else the node."""

from __future__ import annotations

import pytest

from pinfold.core.pod.annotations import SCALE_DOWN_GRACE_PERIOD
from pinfold.core.pod.api import PodError, pod_from_api
from pinfold.core.pod.grace import grace_of
from pinfold.core.pod.manifest.validation import validate_pod
from pinfold.core.pod.pod import Pod

NODE = 7.0


def pod(field: object = None, **annotations: str) -> Pod:
    said = {SCALE_DOWN_GRACE_PERIOD.key(f"container.{n}"): text for n, text in annotations.items()}
    if "pod" in annotations:
        said[SCALE_DOWN_GRACE_PERIOD.key()] = annotations["pod"]
        del said[SCALE_DOWN_GRACE_PERIOD.key("container.pod")]
    given = {} if field is None else {"scaleDownGracePeriodSeconds": field}
    names = ("a", "b")
    return pod_from_api(
        {
            "metadata": {"name": "p", "annotations": said},
            "spec": {"containers": [{"name": name} for name in names], **given},
        }
    )


@pytest.mark.parametrize(
    ("field", "annotations", "a", "b"),
    [
        (None, {}, NODE, NODE),
        (0, {}, 0.0, 0.0),
        (10, {"pod": "3", "a": "4"}, 10.0, 10.0),
        (None, {"pod": "3", "a": "4"}, 4.0, 3.0),
        (None, {"a": "0"}, 0.0, NODE),
        (None, {"pod": "soon"}, NODE, NODE),
    ],
)
def test_who_says_how_long(
    field: int | None, annotations: dict[str, str], a: float, b: float
) -> None:
    found = pod(field, **annotations)
    validate_pod(found)
    assert [grace_of(found, name, NODE) for name in ("a", "b")] == [a, b]


@pytest.mark.parametrize("value", [-1, 11, 2**70])
def test_what_the_api_does_not_allow_is_refused(value: int) -> None:
    with pytest.raises(
        PodError,
        match=rf"^spec.scaleDownGracePeriodSeconds: Invalid value: {value}: must be between 0 and "
        r"10, inclusive$",
    ):
        validate_pod(pod(value))


@pytest.mark.parametrize("value", ["5", 1.5, True, []])
def test_it_is_a_whole_number(value: object) -> None:
    with pytest.raises(PodError, match=r"^spec\.scaleDownGracePeriodSeconds: must be an integer"):
        pod(value)
