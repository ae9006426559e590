"""Headless Chromium: screenshots, measures and prints of a page, without a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), "")
"""Path of a Chromium; empty where none is installed."""

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
_MEASURE = """<script>
window.addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter(one => !one.closest("svg"))
    .filter(one => one.getBoundingClientRect().right > innerWidth + 0.5)
    .map(one => `${one.tagName} ${one.className}: ${one.textContent.slice(0, 40)}`);
  const texts = [...document.querySelectorAll("svg")].flatMap(svg => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter(one => {
      const box = one.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
    }).map(one => one.textContent);
  });
  const found = {width: innerWidth, scroll: document.documentElement.scrollWidth, wide, texts,
    charts: document.querySelectorAll("svg").length};
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""


def open_page(page: Path, *flags: str) -> str:
    """Open a page, and return what the browser prints."""
    profile = page.parent / "profile"
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def screenshot(page: Path, file: Path, width: int, height: int) -> None:
    """Draw the top of a page into a PNG file, in its light colours."""
    open_page(
        page, f"--window-size={width},{height}", "--blink-settings=preferredColorScheme=1", f"--screenshot={file}"
    )


def measure(page: Path, width: int) -> dict[str, Any]:
    """Return what a script finds in a copy of a page that allows scripts: widths, and what is wider than the window."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text(), count=1)
    copy = page.with_name(f"measured-{page.name}")
    copy.write_text(text.replace("</body>", f"{_MEASURE}</body>"))
    found = re.search(r'<pre id="found">(.*?)</pre>', open_page(copy, f"--window-size={width},900", "--dump-dom"))
    assert found is not None
    words = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    measured: dict[str, Any] = json.loads(words)
    return measured


def requests(page: Path, log: Path) -> set[str]:
    """Return the addresses that the browser asked for while it drew a page."""
    open_page(page, "--screenshot=" + str(log.with_suffix(".png")), f"--log-net-log={log}")
    return set(re.findall(r'"url":"([^"]*)"', log.read_text()))
