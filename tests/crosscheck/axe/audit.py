"""An accessibility audit of a page by axe-core, in headless Chromium, without a network.

    npm install --prefix tests/crosscheck/axe
    python -m tests.crosscheck.axe.audit reports/scorecard.html

The page is copied with the rules inlined, its Content-Security-Policy taken out (it forbids every script) and every
fold opened, and is audited at a laptop's width in light and in dark, and at a phone's. Exit code 1 if a finding is
serious or critical.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SERIOUS = {"serious", "critical"}
VIEWS = ((1366, False), (1366, True), (390, False))  # width in pixels, dark
TIMEOUT_S = 300
MOST_TIME_MS = 240_000  # of the page's own clock, which Chromium runs ahead while nothing happens

_RUN = """
for (const d of document.querySelectorAll('details')) d.open = true;
axe.run(document, {resultTypes: ['violations']}).then(r => {
  const found = r.violations.map(v => ({id: v.id, impact: v.impact, help: v.help,
    nodes: v.nodes.map(n => n.target.join(' ') + ': ' + n.html.slice(0, 160))}));
  const out = {version: axe.version, dark: matchMedia('(prefers-color-scheme: dark)').matches, found};
  document.documentElement.innerHTML = '<body><pre id="axe"></pre></body>';
  document.getElementById('axe').textContent = JSON.stringify(out);
}, e => { document.documentElement.innerHTML = '<body><pre id="failed"></pre></body>';
  document.getElementById('failed').textContent = String(e); });
"""


@dataclass(frozen=True)
class Finding:
    """``nodes``: where, each as a selector with the beginning of its markup."""

    id: str
    impact: str
    help: str
    nodes: tuple[str, ...]


def chromium() -> str | None:
    return next((found for n in NAMES if (found := shutil.which(n))), None)


def instrumented(page: str, rules: str) -> str:
    """The page with the rules in it, and without the policy that would forbid them."""
    open_to_scripts = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    return open_to_scripts.replace("</body>", f"<script>{rules}</script><script>{_RUN}</script></body>")


def audit(page: str, width: int = 1366, dark: bool = False, axe: Path = AXE) -> list[Finding]:
    """What axe-core finds on a page.

    Raises:
        RuntimeError: Chromium ended without a result, or in the other colour scheme.
    """
    with tempfile.TemporaryDirectory(prefix="seatrial-axe-") as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(instrumented(page, axe.read_text(encoding="utf-8")), encoding="utf-8")
        command = [
            str(chromium()),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={folder}/profile",
            f"--window-size={width},1200",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--virtual-time-budget={MOST_TIME_MS}",
            "--dump-dom",
            copy.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    result = re.search(r'<pre id="axe">(.*?)</pre>', done.stdout, re.S)
    if result is None:
        why = re.search(r'<pre id="failed">(.*?)</pre>', done.stdout, re.S)
        raise RuntimeError(f"axe-core gave no result: {html.unescape(why[1]) if why else done.stderr[-400:]}")
    value = json.loads(html.unescape(result[1]))
    if value["dark"] is not dark:
        raise RuntimeError(f"the page was shown {'dark' if value['dark'] else 'light'}, which was not asked")
    return [Finding(v["id"], str(v["impact"]), v["help"], tuple(v["nodes"])) for v in value["found"]]


def main(arguments: Sequence[str]) -> int:
    worst = 0
    for name in arguments:
        page = Path(name).read_text(encoding="utf-8")
        for width, dark in VIEWS:
            found = audit(page, width, dark)
            print(f"{name}, {width} pixels, {'dark' if dark else 'light'}: {len(found)} findings")
            for f in found:
                worst = max(worst, int(f.impact in SERIOUS))
                print(f"  {f.impact}: {f.id}: {f.help} ({len(f.nodes)} places)")
                for node in f.nodes[:5]:
                    print(f"    {node}")
    return worst


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
