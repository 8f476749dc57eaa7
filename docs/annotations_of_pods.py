"""The page of annotations, from the table of the core."""

from __future__ import annotations

from pinfold.core.pod.annotations import ANNOTATIONS

_ANNOTATIONS = """\
What a pod can say to Pinfold by annotations. A value is a string, so `"true"` and `"5"` are quoted.

A `NAME` of this table is written `NAME.pinfold.dev/pod` for all containers of the pod, or
`NAME.pinfold.dev/container.CONTAINER` for one of them, which then counts more;
`pinfold.dev/memory-limit` is for the whole pod, and written so. Annotations count for new pods
only.

What is noted: an annotation of this domain that is not in this table, a value that it cannot have,
a container that the pod does not have, an annotation that is not carried out, one that is written
as a label or at a workload instead of its template, and a device of `near` that is not there.
Where: in the answer to the request (`warnings`) and by `pinfold apply`, in the notes of
`pinfold plan`, and in the agent's log. What cannot be read says nothing; only a
pod whose wish for a place (`near`, `near-policy`, `isolated-cpus`, `smt-isolate`) or for
`mixed-cpus` cannot be read is rejected, with `InvalidAnnotation`. `plan` gives the answer of a
kubelet, which knows none of them; of a file with a section `pinfold`, it heeds `isolated-cpus`,
`smt-isolate` and `mixed-cpus` and says what of the others would be in force, and without one it
notes them. So `plan --resize` heeds `keep-cpus` and `resize-below-baseline` of a file with that
section, and `rebalance --dry-run` heeds `rebalance` with any.
"""


def page() -> str:
    """What a pod can say by annotations."""
    parts = ["\n# Annotations\n", _ANNOTATIONS]
    header = ["| Annotation | Value | Without it | | In force with |", "|---|---|---|---|---|"]
    rows = [
        f"| `{row.key() if row.of_whole_pod else row.name}` | {row.values} | {row.unsaid} "
        f"| {row.meaning} "
        f"| {', '.join(f'`{runtime}`' for runtime in row.runtimes) or 'not yet carried out'} |"
        for row in ANNOTATIONS
    ]
    return "\n".join([*parts, *header, *rows]) + "\n"
