"""What an operator is told of problems: lines of the log, and nothing stops for them."""

from __future__ import annotations

import structlog

log = structlog.get_logger("pinfold")


def report(pod: str | None, problem: str) -> None:
    """Tell the operator of a problem; the pod as ``namespace/name``."""
    log.warning("problem", pod=pod, problem=problem)


def report_of_node(problem: str) -> None:
    """Tell the operator of a problem of no single pod."""
    report(None, problem)


def report_of_work(work: str, problem: str) -> None:
    """Tell the operator of work that goes on for ever and has failed; "": it does not any more."""
    if problem:
        log.error("failed", work=work, problem=problem)
    else:
        log.info("works again", work=work)
