#!/usr/bin/env python3
"""What the status page costs on a farm of any size: first bytes, sizes, open pages, and events on their way to them.

    cargo run --release -p planforge-grown --example grown_farm -- FOLDER [WAITING [FINISHED [HOSTS]]]
    cargo build --release && tests/bench/page.py --planforge target/release/planforge --data FOLDER [--pages 200]

Starts a coordinator on the folder, reads each page in turns, then keeps pages open, each with a stream of its own, while
jobs are submitted at a steady rate, and ends it. Prints a row a page, then processor time as a share of one core and the
time from the reply to a submission to the update that names its job. What is open reads and drops what comes; one more
stream is looked through.
"""

import argparse
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import threading
import time
import urllib.parse

PAGES = ["/", "/jobs", "/jobs?state=ended&sort=ended", "/engines", "/devices", "/farm", "/activity"]
SKU = "gpu-nobody-has"
# A folder that was filled at once is collected from its first minute on, which is no cost of a page.
KEPT = ["--keep-jobs", "--keep-events", "--keep-logs", "--keep-reports", "--keep-uploads", "--keep-unused", "--keep-superseded"]
# All pages together.
OPENED_WITHIN_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Farm:
    def __init__(self, planforge, data):
        self.port = free_port()
        environment = {**os.environ, "PLANFORGE_DATA": str(data)}
        listen = f"127.0.0.1:{self.port}"
        # Room for what is submitted beside what waits already.
        command = [planforge, "coordinator", "--data", str(data), "--listen", listen, "--max-jobs", "1000000"]
        command += [word for option in KEPT for word in (option, "ever")]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                if self.get("/readyz")[0] == 200:
                    break
            except OSError:
                pass
            time.sleep(0.1)
        else:
            raise SystemExit("the coordinator does not become ready")
        made = [planforge, "--data", str(data), "token", "create", f"bench-{os.getpid()}-{self.port}", "--role", "admin"]
        made = json.loads(subprocess.run([*made, "--json"], check=True, capture_output=True).stdout)
        self.token = made.get("secret") or made["token"]

    def headers(self):
        return {"Authorization": f"Bearer {self.token}"} if hasattr(self, "token") else {}

    def get(self, path):
        """Status, milliseconds to the first byte of the answer, and its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.connect()
        begin = time.perf_counter()
        connection.request("GET", path, headers=self.headers())
        answer = connection.getresponse()
        took_ms = (time.perf_counter() - begin) * 1e3
        body = answer.read()
        connection.close()
        return answer.status, took_ms, body

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {**self.headers(), "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status >= 300:
            raise SystemExit(f"{path}: {answer.status} {text[:300]}")
        return json.loads(text)

    def end(self):
        self.process.terminate()
        self.process.wait(60)

    def most_memory_mib(self):
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quantile(values, share):
    """The value below which that share of them lies; `values` need not be sorted."""
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


class Stream(threading.Thread):
    """Reads the updates of a page until it is ended; `hear` is given each piece as it comes."""

    def __init__(self, farm, topic, hear):
        super().__init__(daemon=True)
        self.hear = hear
        self.status, self.answered = 0, threading.Event()
        self.connection = http.client.HTTPConnection("127.0.0.1", farm.port, timeout=600)
        self.connection.connect()
        self.connection.request("GET", f"/events?topic={urllib.parse.quote(topic, safe='')}", headers=farm.headers())
        # The answer lets go of the connection's own name for it.
        self.socket = self.connection.sock
        self.start()

    def run(self):
        try:
            answer = self.connection.getresponse()
            self.status = answer.status
            self.answered.set()
            while piece := answer.read1(1 << 16):
                self.hear(piece)
        except (OSError, http.client.HTTPException, ValueError):
            pass
        finally:
            self.answered.set()

    def end(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def first_bytes(farm, rounds):
    """Of each page the milliseconds to the first byte, read after read, its bytes, and what it answered beside 200."""
    found = {}
    for page in PAGES:
        farm.get(page)
        reads = [farm.get(page) for _ in range(rounds)]
        found[page] = ([ms for _, ms, _ in reads], len(reads[-1][2]), {status for status, _, _ in reads} - {200})
    return found


def asking(planforge, data):
    """A submission that may be sent again and again, for a device kind that nobody has."""
    model = pathlib.Path(data).resolve().parent / "bench-digits.onnx"
    subprocess.run([planforge, "testmodel", "digits", "-o", str(model)], check=True, capture_output=True)
    own = ["--data", data, "--json"]
    sent = [planforge, *own, "submit", str(model), "--sku", SKU, "--wait-for-device"]
    job = json.loads(subprocess.run(sent, check=True, capture_output=True).stdout)["jobs"][0]
    return {"models": [job["model"]], "skus": [SKU], "force": True, "wait_for_device": True}


def submitting(farm, ask, given, tell):
    """Submits jobs at a steady rate; the share of a core that the coordinator used, and how many jobs there were."""
    begin, cpu_s, count = time.perf_counter(), farm.cpu_s(), 0
    while time.perf_counter() - begin < given.seconds:
        next_at = begin + count / given.rate
        time.sleep(max(0.0, next_at - time.perf_counter()))
        tell(farm.post("/api/v1/jobs", ask)["jobs"][0]["id"])
        count += 1
    return (farm.cpu_s() - cpu_s) / (time.perf_counter() - begin), count


def open_pages(farm, ask, topics, given):
    """Keeps pages open, in turns of these topics, while jobs are submitted.

    The share of a core that the coordinator used, the bytes that it sent, how many jobs were submitted, and of those that
    the page of the newest jobs named the milliseconds since the reply.
    """
    heard, waiting, lock = [], {}, threading.Lock()
    received = [0]

    def drop(piece):
        received[0] += len(piece)

    def look(piece):
        now = time.perf_counter()
        with lock:
            for name in list(waiting):
                if name.encode() in piece:
                    heard.append((now - waiting.pop(name)) * 1e3)

    streams = [Stream(farm, topics[number % len(topics)], drop) for number in range(given.pages - 1)]
    streams.append(Stream(farm, "/jobs?sort=newest", look))
    for stream in streams:
        if not stream.answered.wait(OPENED_WITHIN_S) or stream.status != 200:
            raise SystemExit(f"a page does not open: {stream.status}")
    time.sleep(5)

    def submitted(made):
        with lock:
            waiting[made] = time.perf_counter()

    used, count = submitting(farm, ask, given, submitted)
    time.sleep(5)
    for stream in streams:
        stream.end()
    return used, received[0], count, heard


def arguments(description):
    """What every benchmark of the page takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--planforge", required=True, help="the program")
    parser.add_argument("--data", required=True, help="the data folder of a farm")
    parser.add_argument("--rounds", type=int, default=30, help="reads of each page")
    parser.add_argument("--pages", type=int, default=200, help="pages that are open at once")
    parser.add_argument("--rate", type=float, default=10.0, help="submissions a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long there are submissions")
    return parser


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--topic", default="/jobs", help="the page that is open")
    given = parser.parse_args()
    planforge = str(pathlib.Path(given.planforge).resolve())
    farm = Farm(planforge, pathlib.Path(given.data).resolve())
    try:
        measure(farm, planforge, given)
    finally:
        farm.end()


def measure(farm, planforge, given):
    print(f"{'page':<32} {'first byte, ms: median':>24} {'p99':>8} {'bytes':>10}")
    for page, (took, size, odd) in first_bytes(farm, given.rounds).items():
        odd = f"  answered {odd}" if odd else ""
        print(f"{page:<32} {statistics.median(took):>24.1f} {quantile(took, 0.99):>8.1f} {size:>10,}{odd}")
    ask = asking(planforge, given.data)
    alone, _ = submitting(farm, ask, given, lambda _: None)
    used, sent, count, heard = open_pages(farm, ask, [given.topic], given)
    print(f"\n{given.pages} open pages ({given.topic}), {count} submissions at {given.rate:g}/s: {used:.1%} of a core, of "
          f"which {alone:.1%} are the submissions' own; {sent / 1e6:.1f} MB sent to the pages")
    if heard:
        print(f"from a submission's reply to the update that names its job: median {statistics.median(heard):.0f} ms, "
              f"p99 {quantile(heard, 0.99):.0f} ms, of {len(heard)} of {count} that were heard of")


if __name__ == "__main__":
    main()
