"""A server just large enough to be started, proven and stopped. Standard library only; behaves badly on request.

Run as ``python mini_server.py serve MODEL --host H --port P --served-model-name N``; MINI is a comma-separated list of
faults in the environment: ``deaf`` (ignores SIGTERM), ``exit3`` (fails at once), ``hang`` (says nothing), ``mute``
(healthy, but no tokens), ``nokey`` (asks for no key), ``child`` (a child in a session of its own), ``shm`` (shared
memory that nobody removes), ``die`` (ends two requests after the probe, with code 0), ``flood`` (writes 30 MB).
"""

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAULTS = os.environ.get("MINI", "").split(",")
KEY = os.environ.get("VLLM_API_KEY", "")
SERVED = {"completions": 0}
KEPT = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, value, kind="application/json"):
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self):
        return "nokey" in FAULTS or not KEY or self.headers.get("Authorization") == f"Bearer {KEY}"

    def do_GET(self):
        if self.path == "/health":
            self.answer(200, {})
        elif self.path == "/version":
            self.answer(200, {"version": "0.0.mini"})
        elif self.path == "/metrics":
            self.answer(
                200,
                'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 2\nhalf',
                "text/plain",
            )
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": NAME}]}) if self.allowed() else self.answer(401, {"error": "key"})
        else:
            self.answer(404, {})

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/reset_prefix_cache":
            return self.answer(200, {})
        if not self.allowed():
            return self.answer(401, {"error": "key"})
        if self.path != "/v1/completions":
            return self.answer(404, {})
        SERVED["completions"] += 1
        if "die" in FAULTS and SERVED["completions"] > 1:
            print("ERROR 01-01 00:00:00 [core.py:1] EngineCore encountered a fatal error.", flush=True)
            os._exit(0)
        if "mute" in FAULTS:
            return self.answer(500, {"error": "no"})
        return self.answer(200, {"choices": [{"text": " x y"}], "usage": {"completion_tokens": 2}})


def misbehave():
    if "exit3" in FAULTS:
        print("ERROR: something is wrong", file=sys.stderr, flush=True)
        sys.exit(3)
    if "deaf" in FAULTS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in FAULTS:
        KEPT.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True))
    if "shm" in FAULTS:
        with Path(f"/dev/shm/psm_autotune_{os.getpid()}").open("w+b") as stream:
            stream.truncate(4096)
            KEPT.append(mmap.mmap(stream.fileno(), 4096))
    if "flood" in FAULTS:
        for _ in range(300):
            os.write(1, b"INFO 01-01 00:00:00 [x.py:1] " + b"x" * 100_000 + b"\n")
    if "hang" in FAULTS:
        time.sleep(600)


if __name__ == "__main__":
    words = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=False))
    NAME = words["--served-model-name"]
    misbehave()
    print("INFO 01-01 00:00:00 [x.py:1] Starting vLLM API server 0 on http://127.0.0.1", flush=True)
    server = ThreadingHTTPServer((words["--host"], int(words["--port"])), Handler)
    print("INFO:     Application startup complete.", flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in FAULTS else lambda *_: os._exit(0))
    server.serve_forever()
