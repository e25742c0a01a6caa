"""The scorecard under axe-core's rules; only where these are at hand (see audit.py), since they come from npm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.report.build import build
from tests.crosscheck.axe.audit import AXE, SERIOUS, VIEWS, audit, chromium, instrumented
from tests.pipeline.report import extras, synthetic

at_hand = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: npm install --prefix tests/crosscheck/axe"),
    pytest.mark.skipif(chromium() is None, reason="no Chromium on the PATH"),
]


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("audited")
    params = synthetic.make(root)
    for add in (extras.release, extras.aa, extras.drill, extras.findings, extras.ratings):
        add(root)
    extras.verdict_as(root, "hold")
    build(root, params)
    shutil.rmtree(root / "results")
    return root / "reports/scorecard.html"


@pytest.mark.parametrize(("width", "dark"), VIEWS)
class TestCard:
    pytestmark = at_hand

    def test_nothing_serious_is_found(self, card: Path, width: int, dark: bool) -> None:
        found = audit(card.read_text(encoding="utf-8"), width, dark)
        assert [(f.id, f.nodes[:3]) for f in found if f.impact in SERIOUS] == []


class TestInstrument:
    pytestmark = at_hand

    def test_it_sees_faults(self) -> None:
        bad = '<!DOCTYPE html><html><head><title>x</title></head><body><main><h1>x</h1><img src="data:,"><p style='
        bad += '"color:#bbb;background:#fff">pale</p></main></body></html>'
        assert {f.id for f in audit(bad) if f.impact in SERIOUS} == {"html-has-lang", "image-alt", "color-contrast"}


def test_the_copy_may_run_the_rules_and_nothing_else_of_it_changes() -> None:
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    made = instrumented(f"<head>{policy}</head><body><p>x</p></body>", "RULES")
    assert "Content-Security-Policy" not in made
    assert made.startswith("<head></head><body><p>x</p><script>RULES</script>")
