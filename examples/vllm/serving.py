"""Parts of a small deployment: vLLM servers on this machine, and a proxy that has one prefill and another decode."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: For a tiny model on few processors: small caches, no compilation, nothing fetched, loopback alone.
ARGUMENTS = (
    *("--dtype", "float32", "--max-model-len", "1024", "--enforce-eager", "--block-size", "32", "--seed", "0"),
    *("--kv-cache-memory-bytes", str(64 * 2**20), "--max-num-seqs", "16", "--disable-uvicorn-access-log"),
    # vLLM's default is to kill its workers at once, before they can say goodbye.
    *("--shutdown-timeout", "5"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
#: What the proxy says to the prefill server: compute the prompt, keep the cache, tell how it is reached.
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def connector(role: str, **settings: Any) -> dict[str, Any]:
    """The ``--kv-transfer-config`` of vLLM for one role, with settings of the connector."""
    return {
        "kv_connector": "CachefwConnector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": settings,
    }


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One OpenAI-compatible vLLM server in a process group of its own; its log is a file."""

    def __init__(
        self,
        name: str,
        model: Path,
        logs: Path,
        transfer: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = ARGUMENTS,
    ) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = logs / f"{name}.log"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--host", "127.0.0.1", "--port", self.url.rpartition(":")[2], "--served-model-name", "model"]
        command += list(arguments)
        if transfer is not None:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **ENVIRONMENT}, start_new_session=True
            )

    def ready(self, timeout: float = 240.0) -> Server:
        """Wait until it serves.

        Raises:
            RuntimeError: It ended, or does not serve in time; the text has the end of its log.
        """
        end = time.monotonic() + timeout
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/health", timeout=2):
                return self
            time.sleep(0.2)
        state = f"ended with {self.process.returncode}" if self.process.poll() is not None else "does not answer"
        raise RuntimeError(f"server {self.name} {state}; the end of {self.log}:\n" + "\n".join(self.lines()[-20:]))

    def post(self, path: str, body: Mapping[str, Any], timeout: float = 120.0) -> Any:
        """The answer to a request."""
        with send(self.url + path, body, timeout) as answer:
            return json.load(answer)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))

    def lines(self) -> list[str]:
        """Its log."""
        return self.log.read_text(errors="replace").splitlines()

    def kill(self) -> None:
        """End it as a crash would, with the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self, timeout: float = 30.0) -> None:
        """Have it end, and kill what is left."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
        self.kill()


def send(url: str, body: Mapping[str, Any], timeout: float) -> Any:
    """Post JSON; the answer is a file."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=timeout)


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            answer = self.server.ask(self.path, body)
        except urllib.error.HTTPError as error:
            answer = error
        except OSError as error:
            self.send_error(502, str(error))
            return
        with answer:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            self.end_headers()
            while part := answer.read1(65536):
                self.wfile.write(part)
                self.wfile.flush()

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: the servers keep logs."""


class Proxy(ThreadingHTTPServer):
    """Has each prompt computed by one server and continued by the other. Two dozen lines of it are all that matters.

    With `early` both servers get a prompt at once, as soon as the prefill server has answered once, and so said how it
    is reached; both then have to run with ``"mode": "push"``.
    """

    daemon_threads = True

    def __init__(self, prefill: str, decode: str, port: int = 0, *, early: bool = False) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.prefill, self.decode, self.early = prefill, decode, early
        self._where: Mapping[str, Any] | None = None
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, name="proxy", daemon=True)
        self._thread.start()

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """The decode server's answer, as it comes."""
        first = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": PREFILL}
        first.pop("stream_options", None)
        if "max_completion_tokens" in first:
            first["max_completion_tokens"] = 1
        params: Mapping[str, Any] | None = None
        if self.early and self._where is not None:
            name = uuid.uuid4().hex
            first["kv_transfer_params"] = {**PREFILL, "transfer_id": name}
            params = {**self._where, "transfer_id": name}
            threading.Thread(target=self._compute, args=(path, first), daemon=True).start()
        else:
            error = self._compute(path, first)
            if isinstance(error, urllib.error.HTTPError):
                raise error
            params = self._where
        return send(self.decode + path, {**body, "kv_transfer_params": params}, 120.0)

    def _compute(self, path: str, first: Mapping[str, Any]) -> OSError | None:
        """Have the prefill server compute a prompt; if it does not, the decode server has to do it itself."""
        try:
            with send(self.prefill + path, first, 120.0) as answer:
                self._where = json.load(answer).get("kv_transfer_params")
        except OSError as error:
            print(f"proxy: the prefill server does not answer: {error}", file=sys.stderr)
            self._where = None
            return error
        return None

    def close(self) -> None:
        """Serve no more."""
        self.shutdown()
        self.server_close()
        self._thread.join(5)


@contextlib.contextmanager
def deployment(
    model: Path,
    logs: Path,
    prefill: Mapping[str, Any],
    decode: Mapping[str, Any],
    port: int = 0,
    *,
    early: bool = False,
) -> Iterator[tuple[Server, Server, Proxy]]:
    """Two servers and the proxy, all serving; all ended in the end."""
    servers = [
        Server("prefill", model, logs, connector("kv_producer", **prefill)),
        Server("decode", model, logs, connector("kv_consumer", **decode)),
    ]
    try:
        for server in servers:
            server.ready()
        proxy = Proxy(servers[0].url, servers[1].url, port, early=early)
        try:
            yield servers[0], servers[1], proxy
        finally:
            proxy.close()
    finally:
        for server in servers:
            server.stop()
