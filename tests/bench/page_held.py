#!/usr/bin/env python3
"""Every figure that the status page is held to, beside what is asked, on a farm of any size.

    cargo run --release --locked -p planforge-grown --example grown_farm -- FOLDER 100000 1000000 1000
    cargo build --release --locked && tests/bench/page_held.py --planforge target/release/planforge --data FOLDER

Starts a coordinator on the folder, reads each page in turns, paints each in headless Chromium with an empty cache, and
keeps 200 pages open while jobs are submitted, once all of the first page, once all of the queue, once of all pages in
turns. Prints a row a figure, and ends with exit code 1 where one is not what was asked. Each run leaves its submissions
(900 by default) in the folder. Needs Chromium, and of Python its own library alone.
"""

import pathlib
import statistics
import sys

from page import PAGES, Farm, arguments, asking, first_bytes, open_pages, quantile, submitting
from page_paint import painted

# What is asked: at most so much.
FIRST_BYTE_MS = 20
PAGE_BYTES = 150_000
SCRIPT_BYTES = 20_000
OPEN_PAGES_SHARE = 0.10
EVENT_TO_PAGE_MS = 250
PAINT_MS = 500
LAYOUT_SHIFT = 0.0
MEMORY_MIB = 400

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "coordinator/page/assets"


class Table:
    def __init__(self):
        self.missed = 0
        print("| what | measured | asked, at most |\n|---|---|---|")

    def row(self, what, value, asked, form, also=""):
        is_met = value <= asked
        self.missed += not is_met
        mark = "" if is_met else "**"
        print(f"| {what} | {mark}{form.format(value)}{mark}{also} | {form.format(asked)} |", flush=True)


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--paints", type=int, default=5, help="paints of each page")
    given = parser.parse_args()
    planforge = str(pathlib.Path(given.planforge).resolve())
    farm = Farm(planforge, pathlib.Path(given.data).resolve())
    try:
        missed = measure(farm, planforge, given)
    finally:
        farm.end()
    sys.exit(1 if missed else 0)


def measure(farm, planforge, given):
    table = Table()
    for page, (took, size, odd) in first_bytes(farm, given.rounds).items():
        if odd:
            raise SystemExit(f"{page} answered {odd}")
        also = f" (p99 {quantile(took, 0.99):.1f} ms)"
        table.row(f"first byte of `{page}`, median", statistics.median(took), FIRST_BYTE_MS, "{:.1f} ms", also)
        table.row(f"`{page}`", size, PAGE_BYTES, "{:,} bytes")
    scripts = sum(script.stat().st_size for script in SCRIPTS.glob("*.js"))
    table.row("own scripts", scripts, SCRIPT_BYTES, "{:,} bytes")
    for page, (_, paint, shift) in painted(farm, planforge, given.data, PAGES, given.paints).items():
        table.row(f"largest contentful paint of `{page}`, median", paint, PAINT_MS, "{:.0f} ms")
        table.row(f"layout shift of `{page}`, most", shift, LAYOUT_SHIFT, "{:.3f}")
    ask = asking(planforge, given.data)
    alone, _ = submitting(farm, ask, given, lambda _: None)
    for what, topics in [("`/`", ["/"]), ("`/jobs`", ["/jobs"]), ("all pages in turns", PAGES)]:
        used, sent, count, heard = open_pages(farm, ask, topics, given)
        of = f"{given.pages} open pages ({what}), {count} submissions at {given.rate:g}/s"
        also = f" beside the submissions' own {alone:.1%} ({sent / 1e6:.1f} MB sent)"
        table.row(of, used - alone, OPEN_PAGES_SHARE, "{:.1%} of a core", also)
        if len(heard) < count:
            raise SystemExit(f"the page of the newest jobs named {len(heard)} of {count} jobs")
        also = f" (median {statistics.median(heard):.0f} ms)"
        table.row("meanwhile, from a reply to the update that names the job, p99", quantile(heard, 0.99),
                  EVENT_TO_PAGE_MS, "{:.0f} ms", also)
    table.row("most memory of the coordinator", farm.most_memory_mib(), MEMORY_MIB, "{:.1f} MiB")
    return table.missed


if __name__ == "__main__":
    main()
