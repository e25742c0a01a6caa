"""The verdict as JUnit XML, which continuous integration shows rule by rule.

Only what decides is red: a blocking rule of the candidate that fails is a ``failure``, one that is undecided an
``error``. Waived and advisory results, rules that do not apply and the other tiers' are skipped or passed, with what
they say in the text.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from pipeline.gate.model import TierVerdict, Verdict
from pipeline.gate.result import RuleResult

UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML 1.0 cannot hold


def junit(verdict: Verdict) -> str:
    """One suite a tier, the candidate's first; one case a rule."""
    root = ET.Element("testsuites", name=f"seatrial {verdict.policy}: {verdict.verdict}")
    for tier in sorted(verdict.tiers, key=lambda t: t != verdict.candidate):
        root.append(_suite(tier, verdict.tiers[tier], tier == verdict.candidate, verdict.as_of))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(s.get(key, "0")) for s in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(tier: str, judged: TierVerdict, candidate: bool, as_of: str) -> ET.Element:
    suite = ET.Element("testsuite", name=_text(tier), timestamp=as_of.removesuffix("Z"))
    for rule in judged.rules:
        suite.append(_case(tier, rule, candidate))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(judged.rules)))
    if candidate and not judged.deciding and judged.verdict != "ship":
        case = ET.SubElement(suite, "testcase", classname=_text(tier), name="any blocking rule")
        ET.SubElement(case, "error", message=_text(judged.reason), type="undecided")
        suite.set("tests", str(len(judged.rules) + 1))
        suite.set("errors", str(int(suite.get("errors", "0")) + 1))
    return suite


def _case(tier: str, r: RuleResult, candidate: bool) -> ET.Element:
    case = ET.Element("testcase", classname=_text(f"{tier}.{r.group}"), name=_text(r.id))
    said = _text("; ".join(filter(None, (f"{r.title}: {r.detail}", r.would_decide))))
    waived = r.waiver is not None and not r.waiver["expired"]
    if r.outcome == "pass":
        ET.SubElement(case, "system-out").text = said
    elif r.outcome == "not_applicable":
        ET.SubElement(case, "skipped", message=said)
    elif candidate and r.severity == "blocking" and not waived:
        tag = "failure" if r.outcome == "fail" else "error"
        ET.SubElement(case, tag, message=said, type=r.outcome)
    else:
        why = "waived" if waived else r.severity if r.severity == "advisory" else "not the candidate"
        ET.SubElement(case, "skipped", message=f"{r.outcome}, {why}: {said}")
    return case


def _text(value: str) -> str:
    return UNFIT.sub("\ufffd", value)
