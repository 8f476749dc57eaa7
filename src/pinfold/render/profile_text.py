"""How a machine compares with a profile, as text: what differs, what is unknown, what fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pinfold.documents.profile import ProfileCheck, ProfileFinding
from pinfold.render.terminal import Line, Style, clean, print_lines, wrap
from pinfold.render.text import note_lines, summary_lines

_ORDER: Final = ("error", "warning", "info")
_STYLES: Final = {"error": "bad", "warning": "warn", "info": "key"}


def render_profile_check(check: ProfileCheck, style: Style) -> str:
    """The whole comparison, ending in a newline."""
    facts = [
        ("profile", check.profile, ""),
        ("machine", check.machine, ""),
        ("online", check.online, ""),
        ("exclusive", "not known" if check.exclusive is None else check.exclusive or "none", ""),
    ]
    lines: list[Line] = [_verdict(check), [], *summary_lines(facts, style), []]
    for state in ("differs", "unknown"):
        rows = (row for row in check.rows if row.state == state)
        for row in sorted(rows, key=lambda row: _ORDER.index(row.severity)):
            lines += [*_finding(row, style), []]
    if fitting := [row.name for row in check.rows if row.state == "fits"]:
        for at, part in enumerate(wrap(", ".join(fitting), style.width - 8)):
            lines.append([("✓ fits  " if at == 0 else "        ", "good"), (part, "")])
        lines.append([])
    if check.notes:
        lines += [*note_lines(check.notes, style), []]
    return print_lines(lines[:-1], style)


def _verdict(check: ProfileCheck) -> Line:
    counts = check.counts
    words = {"differs": "differ", "unknown": "unknown"}
    told = ", ".join(f"{counts[state]} {word}" for state, word in words.items() if counts[state])
    colour, mark, word = (
        ("good", "✓", "fits") if check.verdict == "fits" else ("bad", "✗", "does not fit")
    )
    verdict = f"{mark} {clean(check.machine)} {word} profile {clean(check.profile)}"
    return [(verdict, colour), (f": {told} of {sum(counts.values())}" if told else "", "")]


def _finding(row: ProfileFinding, style: Style) -> Iterator[Line]:
    unknown = row.state == "unknown"
    head = "unknown" if unknown else row.severity
    yield [
        (head, "dim" if unknown else _STYLES.get(row.severity, "")),
        (" ", ""),
        (row.name, "bold"),
    ]
    rows = [
        ("", row.what),
        ("read", row.read),
        ("found", "nothing" if row.found is None else row.found),
        ("wants", row.expected),
        ("why", f"{row.why} ({row.source})"),
        ("change", row.change),
    ]
    if unknown:
        rows[2] = ("found", row.remark or "")
    for label, text in rows:
        indent, colour = (2, "") if not label else (10, "good" if label == "change" else "")
        for at, part in enumerate(wrap(clean(text), max(style.width - indent, 8), after=",/")):
            yield [(f"  {label if at == 0 else '':<8}" if label else "  ", "dim"), (part, colour)]
