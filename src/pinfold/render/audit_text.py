"""An audit as text: the verdict, the owners, and each finding with what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from pinfold.audit.audit import AuditReport
from pinfold.audit.findings import AuditSeverity, Finding
from pinfold.render.terminal import Line, Style, cell_width, clean, print_lines, wrap
from pinfold.render.text import summary_lines

_STYLES: Final = {
    AuditSeverity.ERROR: "bad",
    AuditSeverity.WARNING: "warn",
    AuditSeverity.INFO: "key",
}
_LONGEST_COMMAND: Final = 600
_UNCLIPPED: Final = 1_000_000


def render_audit(report: AuditReport, style: Style, *, strict: bool = False) -> str:
    """The whole report, ending in a newline."""
    lines: list[Line] = [_verdict(report, strict=strict), []]
    lines += [*summary_lines(_facts(report), style), []]
    if report.record.owners:
        lines += [[("Owners", "bold")], *_owners(report, style), []]
    text = print_lines(lines[:-1], style)
    for finding in report.findings:
        text += "\n" + print_lines(_finding(finding, style), style)
        text += _commands(finding, style)
    return text


def _verdict(report: AuditReport, *, strict: bool) -> Line:
    counts = [
        (f"{number} {severity.value}{'s' if number > 1 else ''}", _STYLES[severity])
        for severity in AuditSeverity
        if (number := report.count(severity))
    ]
    agrees = report.is_clean(strict=strict)
    line: Line = [
        ("✓ the kernel agrees", "good") if agrees else ("✗ the kernel does not agree", "bad")
    ]
    for at, (words, name) in enumerate(counts):
        line += [(": " if at == 0 else ", ", ""), (words, name)]
    return line


def _facts(report: AuditReport) -> list[tuple[str, str, str]]:
    snapshot, record = report.snapshot, report.record
    facts = [("record", record.source, "")]
    if record.shared is not None:
        facts.append(("shared pool", str(record.shared) or "none", ""))
    version = snapshot.cgroup_version
    processes = len({task.pid for task in snapshot.tasks})
    facts += [
        ("exclusive", str(record.exclusive) or "none", ""),
        ("online", str(snapshot.online), ""),
        (
            "looked at",
            f"{processes} processes, {len(snapshot.tasks)} threads, {len(snapshot.irqs)} "
            f"interrupts, {len(snapshot.cpusets)} cgroups"
            + (f", {len(record.containers)} containers" if record.containers else "")
            + ("" if version is None else f" (v{version})"),
            "",
        ),
    ]
    if record.runtime:
        facts.append(("runtime", record.runtime, ""))
    facts += [
        (name, str(cpus), "by the kernel's command line")
        for name, cpus in (
            ("isolated", snapshot.isolated),
            ("nohz_full", snapshot.nohz_full),
            ("rcu_nocbs", snapshot.rcu_nocbs),
        )
        if cpus
    ]
    return facts


def _owners(report: AuditReport, style: Style) -> Iterator[Line]:
    for owner in report.record.owners:
        found = report.effective(owner)
        agrees = found == owner.usable & report.snapshot.online or (
            owner.has_ended if found is None else owner.is_pod and bool(found)
        )
        mark = ("✓ ", "good") if agrees else ("✗ ", "bad")
        names = wrap(clean(str(owner)), style.width - 2, after="/-")
        for at, part in enumerate(names):
            yield [mark if at == 0 else ("  ", ""), (part, "")]
        said = f"CPUs {owner.expected}" + (
            f", of which {owner.lent} are lent" if owner.lent else ""
        )
        if not agrees or found is None:
            kernels = f"the kernel has {found or 'nothing'}" if found is not None else "no cgroup"
            kernels = "it has ended" if found is None and owner.has_ended else kernels
            said += f"; {kernels}"
        for part in wrap(said, style.width - 4, after=","):
            yield [("    ", ""), (part, "dim" if agrees else "bad")]


def _finding(finding: Finding, style: Style) -> Iterator[Line]:
    name = _STYLES[finding.severity]
    yield [(finding.severity.value, name), (" ", ""), (finding.kind.slug, "bold")]
    for part in wrap(clean(finding.what), style.width - 2, after=",/"):
        yield [("  ", ""), (part, "")]
    rows = [("where", finding.where)] if finding.where not in finding.what else []
    rows += [("seen" if at == 0 else "", example) for at, example in enumerate(finding.examples)]
    more = finding.count - len(finding.examples)
    if finding.examples and more > 0:
        rows.append(("", f"and {more} more"))
    rows.append(("why", finding.why or finding.kind.why))
    if not finding.fix:
        rows.append(("help", finding.kind.remedy))
    for label, text in rows:
        for at, part in enumerate(wrap(clean(text), max(style.width - 8, 8), after=",/")):
            yield [(f"  {label if at == 0 else '':<6}", "dim"), (part, "")]


def _commands(finding: Finding, style: Style) -> str:
    """The commands, broken only where a shell joins them again, and never cut."""
    lines: list[Line] = []
    for at, command in enumerate(finding.fix):
        text = clean(command)
        if len(text) > _LONGEST_COMMAND:
            text = f"{text[:60]} ... (the whole command: -o json)"
        for number, part in enumerate(_shell_lines(text, max(style.width - 8, 20))):
            label = "fix" if at == number == 0 else ""
            lines.append([(f"  {label:<6}", "dim"), (part, "good")])
    return print_lines(lines, replace(style, width=_UNCLIPPED))


def _shell_lines(command: str, width: int) -> list[str]:
    """A command on lines that end in a backslash; its words stay whole."""
    lines = [""]
    quoted = False
    for word in command.split(" "):
        fits = cell_width(lines[-1]) + cell_width(word) + 3 <= width
        if not lines[-1] or fits or quoted:
            lines[-1] += f" {word}" if lines[-1] else word
        else:
            lines[-1] += " \\"
            lines.append(word)
        quoted ^= word.count("'") % 2 == 1
    return lines
