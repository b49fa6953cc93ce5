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

PAGES = ["/", "/jobs", "/jobs?state=ended&sort=ended", "/engines", "/devices", "/farm", "/activity"]
SKU = "gpu-nobody-has"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Farm:
    def __init__(self, planforge, data):
        self.port = free_port()
        environment = {**os.environ, "PLANFORGE_DATA": str(data)}
        listen = f"127.0.0.1:{self.port}"
        command = [planforge, "coordinator", "--data", str(data), "--listen", listen]
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

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stream(farm, topic, hear):
    """Reads the updates of a page until the farm ends; `hear` is given each piece as it comes."""
    connection = http.client.HTTPConnection("127.0.0.1", farm.port, timeout=600)
    connection.request("GET", f"/events?topic={topic}", headers=farm.headers())
    answer = connection.getresponse()
    try:
        while piece := answer.read1(1 << 16):
            hear(piece)
    except (OSError, http.client.HTTPException):
        pass


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--planforge", required=True)
    arguments.add_argument("--data", required=True)
    arguments.add_argument("--rounds", type=int, default=30)
    arguments.add_argument("--pages", type=int, default=200)
    arguments.add_argument("--topic", default="/jobs")
    arguments.add_argument("--rate", type=float, default=10.0)
    arguments.add_argument("--seconds", type=float, default=30.0)
    given = arguments.parse_args()
    planforge = str(pathlib.Path(given.planforge).resolve())
    farm = Farm(planforge, pathlib.Path(given.data).resolve())
    try:
        measure(farm, planforge, given)
    finally:
        farm.process.terminate()
        farm.process.wait(60)


def measure(farm, planforge, given):
    print(f"{'page':<32} {'first byte, ms: median':>24} {'p99':>8} {'bytes':>10}")
    for page in PAGES:
        farm.get(page)
        reads = [farm.get(page) for _ in range(given.rounds)]
        took = sorted(ms for _, ms, _ in reads)
        worst = took[min(len(took) - 1, int(len(took) * 0.99))]
        statuses = {status for status, _, _ in reads} - {200}
        odd = f"  answered {statuses}" if statuses else ""
        print(f"{page:<32} {statistics.median(took):>24.1f} {worst:>8.1f} {len(reads[-1][2]):>10,}{odd}")

    model = pathlib.Path(given.data).resolve().parent / "bench-digits.onnx"
    subprocess.run([planforge, "testmodel", "digits", "-o", str(model)], check=True, capture_output=True)
    own = ["--data", given.data, "--json"]
    sent = [planforge, *own, "submit", str(model), "--sku", SKU, "--wait-for-device"]
    job = json.loads(subprocess.run(sent, check=True, capture_output=True).stdout)["jobs"][0]
    ask = {"models": [job["model"]], "skus": [SKU], "force": True, "wait_for_device": True}

    heard, lock = {}, threading.Lock()
    received = [0]

    def drop(piece):
        received[0] += len(piece)

    def look(piece):
        now = time.perf_counter()
        with lock:
            for name in list(waiting):
                if name.encode() in piece:
                    heard[name] = now - waiting.pop(name)

    waiting = {}
    for _ in range(given.pages - 1):
        threading.Thread(target=stream, args=(farm, given.topic, drop), daemon=True).start()
    newest = "/jobs%3Fsort%3Dnewest"
    threading.Thread(target=stream, args=(farm, newest, look), daemon=True).start()
    time.sleep(5)
    begin, cpu_s, count = time.perf_counter(), farm.cpu_s(), 0
    while time.perf_counter() - begin < given.seconds:
        next_at = begin + count / given.rate
        time.sleep(max(0.0, next_at - time.perf_counter()))
        made = farm.post("/api/v1/jobs", ask)["jobs"][0]["id"]
        with lock:
            waiting[made] = time.perf_counter()
        count += 1
    used = (farm.cpu_s() - cpu_s) / (time.perf_counter() - begin)
    time.sleep(5)
    late = sorted(took * 1e3 for took in heard.values())
    print(f"\n{given.pages} open pages ({given.topic}), {count} submissions at {given.rate:g}/s: {used:.1%} of a core, "
          f"{received[0] / 1e6:.1f} MB sent to them")
    if late:
        print(f"from a submission's reply to the update that names its job: median {statistics.median(late):.0f} ms, "
              f"p99 {late[min(len(late) - 1, int(len(late) * 0.99))]:.0f} ms, of {len(late)} of {count} that were heard of")


if __name__ == "__main__":
    main()
