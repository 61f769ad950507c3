"""A large file from an S3 store, interrupted twice, beside one plain download of it.

The store is S3's data plane alone (HEAD and GET with ranges, signatures unread), on this machine, in a
process of its own, so that disk and loopback are the limit and not the store.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHUNK = 1 << 20
KILL_AT = (0.3, 0.65)
# Of what one connection of curl reaches.
LEAST_SHARE = 0.8
FETCH = """
import contextlib, json, sys, time
from pathlib import Path
from launcher.packaging.remote.copies import fetch_model
class Times:
    took_s = {}
    @contextlib.contextmanager
    def stage(self, label, total_bytes=None):
        began_s = time.monotonic()
        yield self
        self.took_s[label.split()[0]] = time.monotonic() - began_s
    def advance_to(self, done):
        pass
fetch_model(sys.argv[1], Path(sys.argv[2]), Times())
print(json.dumps(Times.took_s))
"""


class Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Clients are killed here."""


class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    file: Path
    sent: Path

    def do_HEAD(self) -> None:
        self._head(200, 0, self.file.stat().st_size)

    def do_GET(self) -> None:
        size = self.file.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(wanted[1]), int(wanted[2]) + 1) if wanted else (0, size)
        self._head(206 if wanted else 200, begin, end)
        self.wfile.flush()
        at = begin
        with self.file.open("rb") as file:
            try:
                while at < end:
                    at += os.sendfile(self.connection.fileno(), file.fileno(), at, min(end - at, 8 * CHUNK))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
        with self.sent.open("a") as log:
            log.write(f"{at - begin}\n")

    def _head(self, status: int, begin: int, end: int) -> None:
        size = self.file.stat().st_size
        self.send_response(status)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", f'"{size:x}-1"')
        self.send_header("Last-Modified", "Mon, 16 Nov 2026 00:00:00 GMT")
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Thousands of lines."""


def serve(file: Path, sent: Path) -> None:
    server = Quiet(("127.0.0.1", 0), type("Bound", (Store,), {"file": file, "sent": sent}))
    print(server.server_port, flush=True)
    server.serve_forever()


def make(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(size // CHUNK):
            block = os.urandom(CHUNK)
            digest.update(block)
            file.write(block)
        os.fsync(file.fileno())
    return digest.hexdigest()


def plain(url: str, into: Path) -> float:
    """What one connection and the disk give: curl, and the bytes on the disk."""
    began_s = time.monotonic()
    subprocess.run(["curl", "-sSf", "-o", into, url], check=True)
    descriptor = os.open(into, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    took_s = time.monotonic() - began_s
    into.unlink()
    return took_s


def bytes_whole(data_dir: Path) -> int:
    """As the parts that are noted say."""
    notes = list(data_dir.rglob("*.parts.json"))
    try:
        return sum(len(json.loads(each.read_text())["whole"]) * (16 << 20) for each in notes)
    except (OSError, ValueError):
        return 0


def fetch(
    address: str, data_dir: Path, endpoint: str, kill_at_bytes: int | None
) -> tuple[float, dict[str, float]]:
    """How long it took, and its stages, where it was not killed."""
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    command = [sys.executable, "-c", FETCH, address, str(data_dir)]
    began_s = time.monotonic()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    while kill_at_bytes is not None and child.poll() is None:
        if bytes_whole(data_dir) >= kill_at_bytes:
            child.kill()
        time.sleep(0.02)
    said, _ = child.communicate()
    if kill_at_bytes is None and child.returncode:
        raise SystemExit("the download failed")
    return time.monotonic() - began_s, json.loads(said or "{}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--serve", nargs=2, type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.serve:
        serve(*told.serve)
        return
    size = int(told.gigabytes * 1e9) // CHUNK * CHUNK
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        place = Path(folder)
        digest = make(place / "model.gguf", size)
        command = [
            sys.executable,
            "-m",
            "benchmarks.downloads",
            "--serve",
            str(place / "model.gguf"),
            str(place / "sent"),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            try:
                measure(place, endpoint, size, digest)
            finally:
                server.kill()


def measure(place: Path, endpoint: str, size: int, digest: str) -> None:
    plain_s = min(plain(f"{endpoint}/models/model.gguf", place / "plain") for _ in range(2))
    (place / "sent").unlink()
    address = f"s3://models/model.gguf#sha256={digest}"
    took_s = [fetch(address, place / "data", endpoint, int(size * share))[0] for share in KILL_AT]
    took_s.append(fetch(address, place / "data", endpoint, None)[0])
    sent = sum(map(int, (place / "sent").read_text().split()))
    fresh = [fetch(address, place / name, endpoint, None)[1] for name in ("fresh", "again")]
    stages_s = min(fresh, key=lambda each: each["Downloading"])
    fetch_s, hash_s = stages_s["Downloading"], stages_s["Hashing"]
    print(f"{size / 1e9:.2f} GB; killed at {', '.join(f'{each:.0%}' for each in KILL_AT)} of it")
    print(f"one connection of curl, to the disk: {plain_s:.1f} s, {size / plain_s / 1e6:.0f} MB/s")
    print(f"without a break: {fetch_s:.1f} s, {size / fetch_s / 1e6:.0f} MB/s; hashed in {hash_s:.1f} s")
    print(f"three processes together: {sum(took_s):.1f} s ({', '.join(f'{each:.1f}' for each in took_s)})")
    print(f"bytes that the store sent: {sent / size:.1%} of the file")
    if (share := plain_s / fetch_s) < LEAST_SHARE:
        raise SystemExit(
            f"a goal was missed: {share:.0%} of curl's speed, at least {LEAST_SHARE:.0%} are required"
        )


if __name__ == "__main__":
    main()
