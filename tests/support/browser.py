"""Chromium, which looks at all pages of a site for what is cut off.

A page of ours shows each of the site's pages in a frame that is as wide as a window would be, and sends what it finds to
the server that it came from. So nothing but a browser is needed, and no driver of one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_LOOKER = "looker.html"  # the address of our own page
_FOUND_WITHIN_S = 900
_LOOK = "\n".join(
    (Path(__file__).parent / name).read_text(encoding="utf-8")
    for name in ("cut.js", "look_at_pages.js")
)


class _Site(SimpleHTTPRequestHandler):
    """Serves a site from a folder, our own page, and takes what that finds."""

    def __init__(self, *args: Any, asked: dict[str, Any], found: Queue[Any], **kwargs: Any) -> None:
        self._asked, self._found = asked, found
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        if self.path != f"/{_LOOKER}":
            super().do_GET()
            return
        page = f"<!doctype html><body><script>const ASKED = {json.dumps(self._asked)};\n{_LOOK}</script>"
        self._answer(page.encode(), "text/html; charset=utf-8")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"", "text/plain")
        self._found.put(json.loads(body))

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing for a request."""


def chromium() -> str:
    """Return the path of the browser."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    assert found, f"none of these is on PATH: {', '.join(_NAMES)}; `make pages` installs one"
    return found


def what_is_cut(
    site: Path, pages: Sequence[str], widths: Sequence[int], profile: Path
) -> list[str]:
    """Return what of the pages cannot be seen or read in windows of these widths, a line for each thing.

    Args:
        site: the folder of the site.
        pages: files in it.
        widths: of the windows, in pixels.
        profile: an empty folder for the browser.
    """
    browser = chromium()
    found: Queue[Any] = Queue()
    asked = {"pages": [*pages], "widths": [*widths]}
    handler = partial(_Site, asked=asked, found=found, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        running = subprocess.Popen(
            [
                browser,
                "--headless",
                "--no-sandbox",  # which root, as in a container, cannot have
                "--disable-gpu",
                "--no-first-run",
                f"--user-data-dir={profile}",
                "--remote-debugging-port=0",  # else it ends at once
                "--window-size=1400,900",
                f"http://127.0.0.1:{server.server_port}/{_LOOKER}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            told: list[str] = found.get(timeout=_FOUND_WITHIN_S)
        finally:
            running.terminate()
            running.wait(timeout=60)
            server.shutdown()
    return told
