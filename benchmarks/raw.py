"""The raw limits: `raw.c` and `raw_tcp.c`, compiled when first needed, and the same mappings made without cachefw."""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_NAME = "_cachefw_raw"
_CDEF = """
typedef struct {
    int way, threads, pid;
    uint64_t count;
    const uint64_t *to, *source, *length;
    ...;
} raw_work;
enum { RAW_MEMCPY, RAW_STREAM_ONE, RAW_STREAM_FOUR, RAW_READV, ... };
int raw_run(const raw_work *work);
int can_stream(void);
typedef struct {
    int port, connections;
    uint64_t count;
    const uint64_t *to, *source, *length;
    ...;
} raw_tcp;
int raw_tcp_serve(void);
int raw_tcp_open(raw_tcp *work);
int raw_tcp_run(raw_tcp *work);
void raw_tcp_close(raw_tcp *work);
"""
#: Not one of those in C: the number beside it is that of connections.
TCP = -1

_loaded: Any = None


class NoCompilerError(Exception):
    """There is no C compiler, or it cannot compile against this Python."""


def load() -> Any:
    """The compiled module, with ``ffi`` and ``lib``."""
    global _loaded  # noqa: PLW0603 - one module for each process
    if _loaded is None:
        path = _compiled()
        spec = importlib.util.spec_from_file_location(_NAME, path)
        assert spec is not None
        assert spec.loader is not None
        _loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_loaded)
    return _loaded


def folder() -> Path:
    """Where compiled things are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachefw-benchmarks"


def _compiled() -> Path:
    import cffi

    source = "".join(Path(__file__).with_name(name).read_text() for name in ("raw.c", "raw_tcp.c"))
    stamp = hashlib.sha256(f"{source}{_CDEF}{cffi.__version__}{sys.version}".encode()).hexdigest()[:16]
    own = folder() / stamp
    path = own / f"{_NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if path.exists():
        return path
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("the raw limits are compiled here, and there is no C compiler: install gcc or clang")
    ffi = cffi.FFI()
    ffi.cdef(_CDEF)
    ffi.set_source(_NAME, source)
    own.mkdir(parents=True, exist_ok=True)
    made, glue = own / f"{os.getpid()}.so", own / f"{os.getpid()}.c"
    ffi.emit_c_code(str(glue))
    include = sysconfig.get_path("include")
    command = [compiler, "-O3", "-shared", "-fPIC", "-pthread", f"-I{include}", str(glue), "-o", str(made)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode:
        raise NoCompilerError(f"the raw limits cannot be compiled ({' '.join(command)}):\n{outcome.stderr}")
    glue.unlink()
    # Two processes may compile at once: either result will do.
    made.replace(path)
    return path


def ways(path: str, threads: tuple[int, ...] = (1, 2)) -> dict[str, tuple[int, int]]:
    """The raw ways to move memory on a path: name -> (way, threads)."""
    lib = load().lib
    if path in ("tcp", "tls"):
        return {f"{count} conn., {count} thr.": (TCP, count) for count in threads}
    if path == "cma":
        return {f"readv, {count} thr.": (lib.RAW_READV, count) for count in threads}
    found = {f"memcpy, {count} thr.": (lib.RAW_MEMCPY, count) for count in threads[:1]}
    if lib.can_stream():
        for name, way in (("1 stream", lib.RAW_STREAM_ONE), ("4 streams", lib.RAW_STREAM_FOUR)):
            found.update({f"{name}, {count} thr.": (way, count) for count in threads})
    return found


def mover(way: tuple[int, int], to: U64, source: U64, length: U64, pid: int, port: int = 0) -> Callable[[], int]:
    """One raw call that moves the same pieces again and again; returns 0."""
    module = load()
    arrays = [module.ffi.from_buffer("uint64_t[]", array) for array in (to, source, length)]
    if way[0] == TCP:
        work = module.ffi.gc(module.ffi.new("raw_tcp *", [port, way[1], len(to), *arrays]), module.lib.raw_tcp_close)
        if module.lib.raw_tcp_open(work):
            raise ConnectionError("the raw limit of TCP could not connect")
        call = partial(module.lib.raw_tcp_run, work)
        call.arrays = arrays  # type: ignore[attr-defined]
        return call
    call = partial(module.lib.raw_run, module.ffi.new("raw_work *", [*way, pid, len(to), *arrays]))
    # The struct only points to them.
    call.arrays = arrays  # type: ignore[attr-defined]
    return call


def shared_files(pid: int, addresses: list[int]) -> list[str]:
    """For each address of a process the file in /proc that its shared mapping comes from."""
    inodes: dict[int, str] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(entry).startswith("/memfd:"):
                inodes[entry.stat().st_ino] = str(entry)
        except OSError:
            continue
    spans = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split()
        if fields[4] != "0":
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            spans.append((begin, end, int(fields[4])))
    return [next(inodes[node] for begin, end, node in spans if begin <= address < end) for address in addresses]


def mapped(file: str, size: int) -> tuple[int, Any]:
    """A mapping of our own of a peer's memory: its address, and what keeps it."""
    fd = os.open(file, os.O_RDONLY)
    try:
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(fd)
    return int(np.frombuffer(mapping, np.uint8).ctypes.data), mapping
