"""Verdicts as JUnit XML: a test suite for each run, a test case for each check, and one for the verdict itself.

An inconclusive check is a `failure` of type `inconclusive`, not `skipped`: programs that only read JUnit count skipped
tests as fine, and too little to tell is no pass. The case named `verdict` is there so that a suite is never empty: no
tests at all would read as green. Attributes and their order are those that both Ant's and Jenkins' schema take.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from evalkit.files import write_text
from evalkit.fingerprint import online_facts
from evalkit.outputs.common import overall, pairs, safe
from evalkit.records import Check, Outcome, Run, Verdict

UNKNOWN_TIME = "1970-01-01T00:00:00"  # both schemas ask for a time; a run that says none gets the epoch


def junit_text(verdicts: Sequence[Verdict], runs: Sequence[Run]) -> str:
    """The XML document."""
    root = ET.Element("testsuites")
    names: list[str] = []
    for i, (verdict, run) in enumerate(pairs(verdicts, runs)):
        names.append(_line(verdict.run_id))
        again = names.count(names[-1])  # cells on one run: readers merge what has the same name
        root.append(_suite(i, names[-1] if again == 1 else f"{names[-1]} #{again}", verdict, run))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def write_junit(verdicts: Sequence[Verdict], runs: Sequence[Run], path: Path) -> Path:
    """Writes the XML document."""
    return write_text(path, junit_text(verdicts, runs))


def _suite(number: int, name: str, verdict: Verdict, run: Run | None) -> ET.Element:
    checks = (*verdict.checks, _verdict_case(verdict))
    failures = sum(c.outcome is not Outcome.PASS for c in checks)
    seconds = f"{run.seconds if run else 0:.3f}"
    suite = ET.Element(
        "testsuite", id=str(number), package="evalkit.gate", name=name, timestamp=_timestamp(run),
        hostname="localhost", tests=str(len(checks)), failures=str(failures), errors="0", time=seconds,
    )  # fmt: skip
    properties = ET.SubElement(suite, "properties")
    cell = run.cell if run else {}
    for key in ("task", "target", "draft", "k", "quant"):
        if key in cell:
            ET.SubElement(properties, "property", name=key, value=_line(cell[key]))
    for name_, value in (online_facts(run) if run else {}).items():
        ET.SubElement(properties, "property", name=name_, value=_line(value))
    for check in checks:
        suite.append(_case(check, name))
    ET.SubElement(suite, "system-out").text = safe("\n".join(verdict.notes))
    ET.SubElement(suite, "system-err")
    return suite


def _verdict_case(verdict: Verdict) -> Check:
    telling = [c.name for c in verdict.checks if c.outcome is not Outcome.PASS]
    found = f"{verdict.outcome.value}" + (f" by {', '.join(telling)}" if telling else "")
    return Check(name="verdict", outcome=overall([verdict]), expected="pass", found=found, message=found)


def _case(check: Check, suite: str) -> ET.Element:
    case = ET.Element("testcase", classname=f"evalkit.gate.{suite}", name=_line(check.name), time="0.000")
    if check.outcome is not Outcome.PASS:
        failure = ET.SubElement(case, "failure", type=check.outcome.value, message=_line(check.message))
        failure.text = safe(f"expected: {check.expected}\nfound: {check.found}\n{check.message}")
    return case


def _line(text: object) -> str:
    """Text for an attribute: one line, since an attribute keeps no line break."""
    return " ".join(safe(text).split())


def _timestamp(run: Run | None) -> str:
    """When the run ended, in UTC and without a zone, as the schemas want it."""
    told = run.provenance if run else {}
    said = str(told.get("finished") or told.get("started") or "")[:19]
    return said if len(said) == 19 and said[10] == "T" else UNKNOWN_TIME
