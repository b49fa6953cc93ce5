#!/usr/bin/env python3
"""When a browser has painted a page of a farm, and whether anything moved afterwards.

    tests/bench/page_paint.py --planforge target/release/planforge --data FOLDER [--rounds 5]

Starts a coordinator on the folder, signs headless Chromium in, opens each page several times with an empty cache, and
prints medians of the first byte and the largest contentful paint, and the layout shift, which updates that come within
two seconds are part of. Only Python's own library is needed.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from page import PAGES, Farm

# What the browser saw of the page's painting so far.
SEEN = """new Promise((tell) => setTimeout(() => {
  const last = (type) => new Promise((told) => {
    let found = [];
    new PerformanceObserver((list) => { found = found.concat(list.getEntries()); }).observe({ type, buffered: true });
    setTimeout(() => told(found), 50);
  });
  Promise.all([last("largest-contentful-paint"), last("layout-shift")]).then(([paints, shifts]) => tell(JSON.stringify({
    byte: performance.getEntriesByType("navigation")[0].responseStart,
    paint: paints.length ? paints[paints.length - 1].startTime : null,
    shift: shifts.reduce((sum, shift) => sum + shift.value, 0),
  })));
}, 2000))"""


class Browser:
    """Chromium over its own pipe: it reads descriptor 3 and writes descriptor 4."""

    def __init__(self):
        # The browser's helpers may still write when it has ended.
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to_write = os.pipe()
        self.to_read, to_write = os.pipe()

        def take():
            os.dup2(to_read, 103)
            os.dup2(to_write, 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        command = ["chromium", *flags, f"--user-data-dir={self.profile.name}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, preexec_fn=take, close_fds=False, **quiet)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.count, self.session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.setCacheDisabled", cacheDisabled=True)

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" in self.rest:
                text, self.rest = self.rest.split(b"\0", 1)
                answer = json.loads(text)
                if answer.get("id") == self.count:
                    if "error" in answer:
                        raise SystemExit(f"{method}: {answer['error']}")
                    return answer["result"]
            self.rest += os.read(self.to_read, 1 << 20)

    def eval(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return answer["result"].get("value")

    def open(self, url):
        self.call("Page.navigate", url=url)
        for _ in range(300):
            if self.eval("document.readyState === 'complete' && location.href !== 'about:blank'"):
                return
            time.sleep(0.02)


def painted(farm, planforge, data, pages, rounds):
    """Of each page the medians of the first byte and of the largest contentful paint in ms, and the most layout shift."""
    browser = Browser()
    try:
        made = subprocess.run([planforge, "--data", data, "open", "--json"], check=True, capture_output=True)
        url = f"http://127.0.0.1:{farm.port}"
        once = json.loads(made.stdout)["url"].split("/login", 1)[1]
        browser.open(f"{url}/login{once}")
        time.sleep(2)
        found = {}
        for page in pages:
            seen = []
            for _ in range(rounds):
                browser.open("about:blank#")
                browser.open(url + page)
                seen.append(json.loads(browser.eval(SEEN)))
            byte = statistics.median(one["byte"] for one in seen)
            paint = statistics.median(one["paint"] or 0 for one in seen)
            found[page] = (byte, paint, max(one["shift"] for one in seen))
        return found
    finally:
        browser.process.kill()
        browser.process.wait()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--planforge", required=True)
    arguments.add_argument("--data", required=True)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--pages", nargs="*", default=PAGES)
    given = arguments.parse_args()
    planforge = str(pathlib.Path(given.planforge).resolve())
    farm = Farm(planforge, pathlib.Path(given.data).resolve())
    try:
        print(f"{'page':<32} {'first byte, ms':>16} {'largest paint, ms':>18} {'layout shift':>14}")
        for page, (byte, paint, shift) in painted(farm, planforge, given.data, given.pages, given.rounds).items():
            print(f"{page:<32} {byte:>16.1f} {paint:>18.0f} {shift:>14.3f}")
    finally:
        farm.end()


if __name__ == "__main__":
    main()
