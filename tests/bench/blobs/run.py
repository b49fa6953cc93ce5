#!/usr/bin/env python3
"""Blob transfer beside nginx and a plain sink, interleaved in one run.

    tests/bench/blobs/run.py --planforge target/release/planforge [--mib 1024] [--rounds 5] [--dir FOLDER]

down: the same file from nginx (sendfile on, default buffers) and from the coordinator, read by one raw socket client.
up:   the same bytes into an HTTP sink that only writes and fsyncs, and into the coordinator, which also hashes,
      checks the digest and renames. Sends by sendfile, so that the client costs little.

Prints one JSON object: MiB/s per round, medians, the two ratios and the fsync rate of the same minute. Needs nginx and
a planforge binary; nothing beyond Python's standard library.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import pathlib
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PIECE_BYTES = 1 << 20
START_TIMEOUT_S = 60


def wait_for(what, found):
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        result = found()
        if result:
            return result
        time.sleep(0.02)
    sys.exit(f"{what} did not start in {START_TIMEOUT_S} s")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def read_head(connection):
    """First line in words, headers, and what of the body came along."""
    buffer = b""
    while b"\r\n\r\n" not in buffer:
        piece = connection.recv(65536)
        if not piece:
            sys.exit(f"the connection ended in the head: {buffer[:200]!r}")
        buffer += piece
    head, rest = buffer.split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    headers = dict(re.split(r":\s*", line, maxsplit=1) for line in lines[1:])
    return lines[0].split(), {name.lower(): value for name, value in headers.items()}, rest


def request(port, head, body=b""):
    """A small request on a connection of its own."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + body)
        first, headers, _ = read_head(connection)
        return int(first[1]), headers


def download(port, path, size, extra=""):
    """Seconds for one whole answer, thrown away as it comes."""
    buffer = bytearray(PIECE_BYTES)
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{extra}\r\n".encode())
        first, headers, rest = read_head(connection)
        if first[1] != "200" or int(headers["content-length"]) != size:
            sys.exit(f"port {port} answered {first} {headers}")
        got = len(rest)
        while got < size:
            count = connection.recv_into(buffer)
            if count == 0:
                sys.exit("the answer ended early")
            got += count
    return time.monotonic() - started


def send_file(port, head, file, size):
    """Seconds until the answer to one upload."""
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as connection, open(file, "rb") as source:
        connection.sendall(head.encode())
        connection.sendfile(source)
        first, headers, _ = read_head(connection)
        if first[1] != "201":
            sys.exit(f"port {port} answered {first} {headers}")
    return time.monotonic() - started


class Sink:
    """Takes PUTs one after the other in a process of its own: writes the body to a file, fsyncs, answers 201."""

    def __init__(self, folder):
        self.file = folder / "sink.bin"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        multiprocessing.get_context("fork").Process(target=self.serve, daemon=True).start()

    def serve(self):
        buffer = bytearray(PIECE_BYTES)
        while True:
            connection, _ = self.listener.accept()
            with connection, open(self.file, "wb", buffering=0) as file:
                _, headers, rest = read_head(connection)
                left = int(headers["content-length"]) - len(rest)
                file.write(rest)
                while left > 0:
                    count = connection.recv_into(buffer)
                    if count == 0:
                        break
                    file.write(memoryview(buffer)[:count])
                    left -= count
                os.fsync(file.fileno())
                connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")


def fsync_rate(folder, seconds=1.0):
    """fsyncs of an appended 4 KiB block per second."""
    path = folder / "fsync.bin"
    with open(path, "wb", buffering=0) as file:
        count, started = 0, time.monotonic()
        while time.monotonic() - started < seconds:
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            count += 1
    path.unlink()
    return count / seconds


def start_nginx(folder, children):
    port = free_port()
    (folder / "nginx").mkdir()
    config = folder / "nginx.conf"
    config.write_text(
        f"""daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 64; }}
http {{ access_log off; sendfile on; client_body_temp_path {folder}/nginx; proxy_temp_path {folder}/nginx;
  fastcgi_temp_path {folder}/nginx; uwsgi_temp_path {folder}/nginx; scgi_temp_path {folder}/nginx;
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }} }}
"""
    )
    children.append(subprocess.Popen(["nginx", "-c", str(config), "-p", str(folder)], stderr=subprocess.DEVNULL))
    wait_for("nginx", lambda: listens(port))
    return port


def start_coordinator(binary, folder, children):
    port = free_port()
    command = [binary, "coordinator", "--data", str(folder / "data"), "--listen", f"127.0.0.1:{port}"]
    log = open(folder / "coordinator.log", "wb")
    children.append(subprocess.Popen(command, stdout=log, stderr=log))
    wait_for("the coordinator", lambda: listens(port))
    secret = (folder / "data" / "admin.token").read_text().strip()
    return port, f"Authorization: Bearer {secret}\r\n"


def vary(file, round_number):
    """Other bytes each round, so that no upload finds its blob stored; returns the digest."""
    with open(file, "r+b") as handle:
        handle.write(round_number.to_bytes(8, "little"))
    digest = hashlib.sha256()
    with open(file, "rb") as handle:
        while piece := handle.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def upload(port, file, size, digest, token):
    body = json.dumps({"digest": digest, "size_bytes": size}).encode()
    head = f"POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\n{token}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    status, headers = request(port, head, body)
    if status != 201:
        sys.exit(f"the upload was answered {status}")
    head = (
        f"PATCH {headers['location']} HTTP/1.1\r\nHost: localhost\r\n{token}Content-Type: application/partial-upload\r\n"
        f"Upload-Offset: 0\r\nUpload-Complete: ?1\r\nContent-Length: {size}\r\n\r\n"
    )
    return send_file(port, head, file, size)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--planforge", required=True)
    arguments.add_argument("--mib", type=int, default=1024)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--dir", type=pathlib.Path, help="where files lie; the temporary folder by default")
    options = arguments.parse_args()
    if not shutil.which("nginx"):
        sys.exit("nginx is not installed")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="blobs-", dir=options.dir))
    children = []
    try:
        (folder / "www").mkdir()
        file, size = folder / "www" / "blob", options.mib << 20
        with open(file, "wb") as handle:
            for _ in range(options.mib):
                handle.write(os.urandom(1 << 20))
        sink = Sink(folder)
        nginx = start_nginx(folder, children)
        coordinator, token = start_coordinator(options.planforge, folder, children)
        rates = {"down_nginx": [], "down_planforge": [], "up_sink": [], "up_planforge": []}
        syncs = []
        for number in range(options.rounds):
            digest = vary(file, number)
            syncs.append(fsync_rate(folder))
            put = f"PUT /blob HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
            steps = [
                ("up_sink", lambda: send_file(sink.port, put, file, size)),
                ("up_planforge", lambda: upload(coordinator, file, size, digest, token)),
            ]
            # Whoever goes first finds a quieter disk: take turns.
            for name, step in steps if number % 2 == 0 else reversed(steps):
                rates[name].append(options.mib / step())
                os.sync()
            steps = [
                ("down_nginx", lambda: download(nginx, "/blob", size)),
                ("down_planforge", lambda: download(coordinator, f"/v1/blobs/sha256/{digest}", size, token)),
            ]
            for name, step in steps if number % 2 == 0 else reversed(steps):
                rates[name].append(options.mib / step())
            (folder / "data" / "blobs" / "sha256" / digest[:2] / digest).unlink()
        medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
        result = {
            "machine": f"{os.cpu_count()} cpus, {platform.machine()}, Linux {platform.release()}",
            "load_1m": os.getloadavg()[0],
            "mib": options.mib,
            "fsync_per_s": [round(rate) for rate in syncs],
            "mib_per_s": {name: [round(value, 1) for value in values] for name, values in rates.items()},
            "median_mib_per_s": medians,
            "down_ratio": round(medians["down_planforge"] / medians["down_nginx"], 3),
            "up_ratio": round(medians["up_planforge"] / medians["up_sink"], 3),
        }
        print(json.dumps(result, indent=2))
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
