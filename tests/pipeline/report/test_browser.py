"""The page in a real browser, from disk: nothing on the console, nothing asked of a network, no sideways scrolling."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((found for n in NAMES if (found := shutil.which(n))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason=f"no Chromium on the PATH (looked for {', '.join(NAMES)})"),
]


def visit(page: Path, tmp: Path) -> tuple[str, list[str], list[str]]:
    """(the DOM after loading, console lines, URLs asked for but data: and the page itself)."""
    net = tmp / "net.json"
    command = [
        str(CHROMIUM),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--enable-logging=stderr",
        "--window-size=1280,900",
        f"--user-data-dir={tmp / 'profile'}",
        f"--log-net-log={net}",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    log = json.loads(net.read_text())
    asked = [str(e["params"]["url"]) for e in log["events"] if "url" in e.get("params", {})]
    mine = [u for u in asked if re.match(r"(https?|wss?)://", u) and not re.search("google|gvt1", u)]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line], mine


def test_no_console_message_and_no_request(built: Path, tmp_path: Path) -> None:
    dom, console, asked = visit(built / "reports/scorecard.html", tmp_path)
    assert "<h1>Ship" in dom
    assert console == []
    assert asked == []


def test_the_instrument_sees_a_console_message_and_a_request(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text('<p>x</p><img src="http://127.0.0.1:9/pixel.png"><script>console.error("seen")</script>')
    _, console, asked = visit(bad, tmp_path)
    assert any("seen" in line for line in console)
    assert "http://127.0.0.1:9/pixel.png" in asked


def width_needed(page: str, width: int, tmp_path: Path) -> int:
    """How wide the page's content is in a window of ``width`` pixels."""
    harness = tmp_path / "harness.html"
    harness.write_text(
        f'<iframe id="f" style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(page)}"></iframe>'
        '<p id="out"></p>'
        '<script>f.onload=()=>{out.textContent="wide:"+f.contentDocument.documentElement.scrollWidth}</script>',
        encoding="utf-8",
    )
    dom, _, _ = visit(harness, tmp_path)
    found = re.search(r"wide:(\d+)", dom)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("width", [400, 820, 1280])
def test_no_sideways_scrolling(built: Path, tmp_path: Path, width: int) -> None:
    page = (built / "reports/scorecard.html").read_text(encoding="utf-8")
    assert 0.9 * width < width_needed(page, width, tmp_path) <= width


def test_the_instrument_sees_a_page_that_is_too_wide(tmp_path: Path) -> None:
    assert width_needed('<body style="margin:0"><div style="width:700px">x</div>', 400, tmp_path) == 700
