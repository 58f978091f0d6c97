"""The native engine of one open transport: memory, batches, transfers, and the thread that tells of finished ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachefw.errors import BusyError, CacheError
from cachefw.transport import Batch, Prepared, Transfer, call_back

from .library import Library
from .status import TRANSPORT, open_error, register_error, transfer_error

__all__ = ["Engine", "Job", "UcxPrepared"]

_SLICE_NS = 100_000_000
#: Connections to one peer that are kept while nobody uses them.
_IDLE = 4


class UcxPrepared(Prepared):
    """A batch in native form, which owns all it needs."""

    __slots__ = ("_path", "_size", "count", "handle")

    def __init__(self, handle: Any, size: int, count: int, path: str) -> None:
        self.handle = handle
        self.count = count
        self._size = size
        self._path = path

    @property
    def nbytes(self) -> int:
        """Sum of the lengths."""
        return self._size

    @property
    def path(self) -> str:
        """UCX's transports on the way, e.g. ``tcp`` or ``rc_verbs``."""
        return self._path


class Job(Transfer):
    """A posted batch."""

    __slots__ = ("_engine", "_failure", "_handle", "_lib", "_prepared", "_result")

    def __init__(self, engine: Engine, prepared: UcxPrepared, handle: Any) -> None:
        self._engine = engine
        self._lib = engine.lib
        self._prepared = prepared
        self._handle = handle
        self._result: Any = None
        self._failure: CacheError | None = None

    @property
    def settled(self) -> bool:
        """Whether UCX holds nothing of it any more."""
        return bool(self._lib.cfw_job_settled(self._handle))

    def wait(self, timeout: float | None = None) -> bool:
        """Keep UCX going until it has settled, asleep while there is nothing to do."""
        end = None if timeout is None else time.monotonic() + timeout
        lib, handle = self._lib, self._handle
        while not lib.cfw_job_settled(handle):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return bool(lib.cfw_job_settled(handle))
            lib.cfw_job_wait(handle, _SLICE_NS if left is None else max(1, min(_SLICE_NS, int(left * 1e9))))
        return True

    @property
    def error(self) -> CacheError | None:
        """What went wrong, with the piece at which it did."""
        if self._result is None:
            result = self._engine.ffi.new("cfw_result *")
            if self._lib.cfw_job_result(self._handle, result):
                raise BusyError("the transfer is not settled yet; wait for it", transport=TRANSPORT)
            if result.status:
                count = self._prepared.count
                item = int(result.item) if result.item < count else None
                self._failure = transfer_error(result.status, self._engine.text(result.status), item, count=count)
            self._result = result
        return self._failure

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Called from the thread that tells of finished transfers, unless it has settled already."""
        if self.settled:
            call_back(callback, self)
        else:
            self._engine.watch(self, self._handle, callback)

    def cancel(self) -> None:
        """Ask UCX for no more of it."""
        self._lib.cfw_job_cancel(self._handle)

    @property
    def path(self) -> str:
        """UCX's transports on the way."""
        return self._prepared.path


class Engine:
    """One UCX worker.

    Args:
        library: The UCX to use.
        settings: UCX's settings by name, without UCX_.
        inflight: Requests of one transfer that UCX works on at a time.
        request: Bytes of one of them, at most.

    Raises:
        TransportUnavailable: UCX refuses.
    """

    def __init__(self, library: Library, settings: Mapping[str, str], inflight: int, request: int = 0) -> None:
        from . import _native

        self.ffi: Any = _native.ffi
        self.lib: Any = _native.lib
        self.text = library.text
        self._inflight, self._request = inflight, request
        words = [self.ffi.new("char[]", word.encode()) for pair in settings.items() for word in pair]
        made = self.ffi.new("cfw_engine **")
        status = self.lib.cfw_engine_create(library.handle, self.ffi.new("char *[]", words), len(settings), made)
        if status:
            raise open_error(status, self.text(status), dict(settings))
        self._engine = made[0]
        size = self.ffi.new("uint64_t *")
        self.address = bytes(self.ffi.buffer(self.lib.cfw_engine_address(self._engine, size), size[0]))
        self._lock = threading.Lock()
        self._closed = False
        self._teller: threading.Thread | None = None
        self._watched: dict[int, tuple[Transfer, Callable[[Transfer], None]]] = {}
        self._tokens = 0
        #: Whether this UCX lays keys out as `keys.fits` knows it.
        self.checks_keys = False
        #: What must live as long as the engine.
        self.kept: list[object] = []
        # Connections that nobody uses now, by the address they lead to.
        self._idle: dict[bytes, list[Any]] = {}

    def register(self, address: int, length: int) -> tuple[Any, bytes]:
        """Map memory; its handle, and the key for peers."""
        made = self.ffi.new("cfw_memory **")
        status = self.lib.cfw_memory_map(self._engine, address, length, made)
        if status:
            raise register_error(status, self.text(status), address, length)
        handle = self.ffi.gc(made[0], self.lib.cfw_memory_release)
        size = self.ffi.new("uint64_t *")
        return handle, bytes(self.ffi.buffer(self.lib.cfw_memory_key(handle, size), size[0]))

    def unregister(self, handle: Any) -> int:
        """Unmap memory; UCX's status."""
        return int(self.lib.cfw_memory_unmap(handle))

    def connect(self, address: bytes, error_mode: int) -> tuple[int, Any]:
        """Begin to connect to a worker: (status, the channel's handle or None)."""
        made = self.ffi.new("cfw_channel **")
        status = self.lib.cfw_channel_open(self._engine, self.ffi.from_buffer(address), len(address), error_mode, made)
        return status, None if status else self.ffi.gc(made[0], self.lib.cfw_channel_release)

    def reuse(self, address: bytes) -> Any:
        """A connection to a worker that was given back, or None."""
        self._sweep()
        with self._lock:
            handles = self._idle.get(address)
            handle = handles.pop() if handles else None
            if not handles:
                self._idle.pop(address, None)
        return handle

    def give_back(self, address: bytes, handle: Any, grace_ns: int) -> None:
        """Stop what runs on a connection, and keep it for the next channel to the same peer, or cut it."""
        if self.lib.cfw_channel_drain(handle, grace_ns) or self.lib.cfw_channel_status(handle):
            self.lib.cfw_channel_close(handle, 0)
            return
        with self._lock:
            handles = self._idle.setdefault(address, [])
            keep = len(handles) < _IDLE and not self._closed
            if keep:
                handles.append(handle)
        if not keep:
            self.lib.cfw_channel_close(handle, 0)
        self._sweep()

    def _sweep(self) -> None:
        """Cut kept connections whose peer is gone."""
        with self._lock:
            gone = [h for handles in self._idle.values() for h in handles if self.lib.cfw_channel_status(h)]
            left = (
                {a: [h for h in handles if h not in gone] for a, handles in self._idle.items()} if gone else self._idle
            )
            self._idle = {address: handles for address, handles in left.items() if handles}
        for handle in gone:
            self.lib.cfw_channel_close(handle, 0)

    def prepare(
        self, channel: Any, operation: int, batch: Batch, remotes: Any, rows: NDArray[np.uint32] | None, path: str
    ) -> UcxPrepared:
        """Put a batch into native form; the native side holds every piece against the peer's memory once more."""
        ffi = self.ffi
        arrays = [ffi.from_buffer("uint64_t[]", array) for array in (batch.local, batch.remote, batch.length)]
        items = ffi.new("cfw_items *")
        items.local, items.remote, items.length = arrays
        items.row = ffi.NULL if rows is None else ffi.from_buffer("uint32_t[]", rows)
        items.remotes, items.num_remotes = remotes, len(remotes)
        items.count, items.operation, items.max_request = len(batch), operation, self._request
        made, item = ffi.new("cfw_batch **"), ffi.new("uint64_t *")
        status = self.lib.cfw_batch_create(channel, items, made, item)
        if status:
            index = int(item[0])
            memory = f" (memory {int(batch.regions[index])})" if index < len(batch.regions) else ""
            raise transfer_error(status, self.text(status), index, pending=memory)
        handle = ffi.gc(made[0], self.lib.cfw_batch_release)
        return UcxPrepared(handle, int(self.lib.cfw_batch_bytes(handle)), len(batch), path)

    def post(self, prepared: UcxPrepared) -> Job:
        """One native call; raises what refuses it."""
        made = self.ffi.new("cfw_job **")
        status = self.lib.cfw_job_post(prepared.handle, self._inflight, made)
        if status:
            raise transfer_error(status, self.text(status), None)
        return Job(self, prepared, self.ffi.gc(made[0], self.lib.cfw_job_release))

    def copy(self, batch: Batch) -> None:
        """Copy within this process."""
        arrays = [self.ffi.from_buffer("uint64_t[]", array) for array in (batch.local, batch.remote, batch.length)]
        self.lib.cfw_copy(*arrays, len(batch))

    def watch(self, transfer: Transfer, job: Any, callback: Callable[[Transfer], None]) -> None:
        """Have a callback called once a job has settled."""
        with self._lock:
            self._tokens += 1
            token = self._tokens
            self._watched[token] = transfer, callback
            if self._teller is None:
                self._teller = threading.Thread(target=self._tell, name="cachefw-rdma-done", daemon=True)
                self._teller.start()
        if self.lib.cfw_job_watch(job, token):
            # The engine is gone, and every job has settled.
            del self._watched[token]
            call_back(callback, transfer)

    def _tell(self) -> None:
        token = self.ffi.new("uint64_t *")
        while self.lib.cfw_engine_next(self._engine, -1, token) == 0:
            with self._lock:
                transfer, callback = self._watched.pop(token[0])
            call_back(callback, transfer)
            del transfer, callback

    def close(self) -> None:
        """End the worker and its thread; whatever has not settled does."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for handle in [handle for handles in idle.values() for handle in handles]:
            self.lib.cfw_channel_close(handle, 0)
        self.lib.cfw_engine_destroy(self._engine)
        if self._teller is not None and self._teller is not threading.current_thread():
            self._teller.join()
