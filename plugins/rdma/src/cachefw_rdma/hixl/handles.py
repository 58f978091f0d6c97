"""What HIXL makes and wants back: servers, clients, registered memory. Each has one owner and is closed once."""

from __future__ import annotations

import socket
import threading
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import attrs

from cachefw.errors import ClosedError, RequestError, refusal
from cachefw.memory import MemoryKind, MemoryRegion

from ._hixl import ffi, lib
from .status import TRANSPORT, check

if TYPE_CHECKING:
    from ._hixl import CData

__all__ = ["PLACEMENTS", "PROTOCOLS", "Client", "Endpoint", "RemoteMemory", "Server", "milliseconds"]

PROTOCOLS: Mapping[str, int] = {
    "roce": lib.COMM_PROTOCOL_ROCE,
    "hccs": lib.COMM_PROTOCOL_HCCS,
    "ub_ctp": lib.COMM_PROTOCOL_UBC_CTP,
    "ub_tp": lib.COMM_PROTOCOL_UBC_TP,
    "uboe": lib.COMM_PROTOCOL_UBOE,
}
PLACEMENTS: Mapping[str, int] = {"device": lib.ENDPOINT_LOC_TYPE_DEVICE, "host": lib.ENDPOINT_LOC_TYPE_HOST}


def milliseconds(seconds: float) -> int:
    """A timeout as HIXL takes it: at least 1 ms."""
    return max(1, min(2**32 - 1, round(seconds * 1000)))


@attrs.frozen
class Endpoint:
    """Where a NIC is.

    Attributes:
        address: An IPv4 or IPv6 address, or the 32 hexadecimal digits of an EID.
        protocol: One of `PROTOCOLS`.
        placement: One of `PLACEMENTS`.
        device: Physical number of the device.
    """

    address: str
    protocol: str = "roce"
    placement: str = "device"
    device: int = 0

    def native(self) -> CData:
        """The same as an ``EndpointDesc *``.

        Raises:
            RequestError: It is none; the text says what would be.
        """
        wrong = []
        if self.protocol not in PROTOCOLS:
            wrong.append(f"protocol must be one of {', '.join(PROTOCOLS)}, not {self.protocol!r}")
        if self.placement not in PLACEMENTS:
            wrong.append(f"placement must be one of {', '.join(PLACEMENTS)}, not {self.placement!r}")
        if isinstance(self.device, bool) or not isinstance(self.device, int) or not 0 <= self.device < 2**32:
            wrong.append(f"device must be a number from 0 on, not {self.device!r}")
        kind, data = self._address()
        if not data:
            wrong.append(f"address must be an IPv4 or IPv6 address or an EID of 32 digits, not {self.address!r}")
        if wrong:
            text = "endpoint: " + "; ".join(wrong)
            raise refusal(RequestError, {ValueError}, text, operation="open", transport=TRANSPORT)
        made = ffi.new("EndpointDesc *")
        made.protocol = PROTOCOLS[self.protocol]
        made.address.type = kind
        ffi.buffer(made.address.bytes)[: len(data)] = data
        made.location.type = PLACEMENTS[self.placement]
        made.location.device = self.device
        return made

    def _address(self) -> tuple[int, bytes]:
        families = ((socket.AF_INET, lib.COMM_ADDR_TYPE_IP_V4), (socket.AF_INET6, lib.COMM_ADDR_TYPE_IP_V6))
        for family, kind in families:
            try:
                return kind, socket.inet_pton(family, self.address)
            except (OSError, TypeError):
                continue
        try:
            eid = bytes.fromhex(self.address)
        except (ValueError, TypeError):
            return 0, b""
        return (lib.COMM_ADDR_TYPE_EID, eid) if len(eid) == 16 else (0, b"")


def _memory(region: MemoryRegion) -> CData:
    made = ffi.new("CommMem *")
    made.type = lib.COMM_MEM_TYPE_DEVICE if region.kind is MemoryKind.DEVICE else lib.COMM_MEM_TYPE_HOST
    made.addr = ffi.cast("void *", region.address)
    made.size = region.length
    return made


_H = TypeVar("_H", bound="_Handle")


class _Handle:
    """Something of HIXL's with memory registered to it.

    Thread safety: HIXL allows no call beside one that destroys, so calls of one handle take turns.
    """

    kind: ClassVar[str]
    _register: ClassVar[str]
    _unregister: ClassVar[str]
    _destroy: ClassVar[str]

    def __init__(self, raw: CData) -> None:
        self._raw: CData | None = raw
        self._lock = threading.RLock()
        self._memory: dict[str, CData] = {}

    @property
    def closed(self) -> bool:
        """Whether it was destroyed."""
        return self._raw is None

    @property
    def raw(self) -> CData:
        """HIXL's own handle.

        Raises:
            ClosedError: It was closed.
        """
        if self._raw is None:
            raise ClosedError(f"this HIXL {self.kind} is closed", operation=self.kind, transport=TRANSPORT)
        return self._raw

    def register(self, tag: str, region: MemoryRegion) -> None:
        """Register memory under a name of its own."""
        with self._lock:
            if tag in self._memory:
                raise refusal(
                    RequestError, {ValueError}, f"there is memory called {tag!r} already", transport=TRANSPORT
                )
            made_p = ffi.new("HixlMemHandle *")
            status = _function(self._register)(self.raw, tag.encode(), _memory(region), made_p)
            check(status, self._register, address=region.address, length=region.length)
            self._memory[tag] = made_p[0]

    def unregister(self, tag: str) -> None:
        """Give memory back. When HIXL refuses, it stays registered."""
        with self._lock:
            if tag in self._memory:
                check(_function(self._unregister)(self.raw, self._memory[tag]), self._unregister, tag=tag)
                del self._memory[tag]

    def close(self) -> None:
        """Give all memory back and destroy it. Idempotent.

        It is gone in any case: of what HIXL refuses on the way, the first is raised at the end.
        """
        with self._lock:
            raw, self._raw = self._raw, None
            if raw is None:
                return
            steps = [(self._unregister, (raw, memory)) for memory in reversed(self._memory.values())]
            self._memory.clear()
            failures = [(name, _function(name)(*args)) for name, args in [*steps, (self._destroy, (raw,))]]
        for name, status in failures:
            check(status, name)

    def __enter__(self: _H) -> _H:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        # Not destroyed here: this may be any thread, and transfers may still be under way.
        if getattr(self, "_raw", None) is not None:
            _warn(f"a HIXL {self.kind} was never closed", ResourceWarning, source=self)


def _function(name: str) -> Callable[..., int]:
    function: Callable[..., int] = getattr(lib, f"cfw_{name}")
    return function


class Server(_Handle):
    """The side whose memory peers read and write.

    Args:
        endpoint: The NIC that they come in by.
        ip: The host's address that clients dial.
        port: The port there.
    """

    kind = "server"
    _register = "HixlCSServerRegMem"
    _unregister = "HixlCSServerUnregMem"
    _destroy = "HixlCSServerDestroy"

    def __init__(self, endpoint: Endpoint, ip: str, port: int) -> None:
        point, where = endpoint.native(), ffi.new("char[]", ip.encode())
        desc = ffi.new("HixlServerDesc *")
        desc.endpoint_list, desc.endpoint_list_num = point, 1
        desc.server_ip, desc.server_port = where, port
        config, made_p = ffi.new("HixlServerConfig *"), ffi.new("HixlServerHandle *")
        check(lib.cfw_HixlCSServerCreate(desc, config, made_p), "HixlCSServerCreate", ip=ip, port=port)
        super().__init__(made_p[0])

    def listen(self, backlog: int = 128) -> None:
        """Let clients connect."""
        with self._lock:
            check(lib.cfw_HixlCSServerListen(self.raw, backlog), "HixlCSServerListen", backlog=backlog)


@attrs.frozen
class RemoteMemory:
    """Memory that a server offers."""

    tag: str
    address: int
    length: int
    on_device: bool


class Client(_Handle):
    """The side that reads and writes.

    Args:
        local: This side's NIC.
        remote: The server's NIC.
        ip: The host's address that the server listens at.
        port: The port there.
        tc: Traffic class of RoCE.
        sl: Service level of RoCE.
    """

    kind = "client"
    _register = "HixlCSClientRegMem"
    _unregister = "HixlCSClientUnregMem"
    _destroy = "HixlCSClientDestroy"

    def __init__(self, local: Endpoint, remote: Endpoint, ip: str, port: int, tc: int = 132, sl: int = 4) -> None:
        here, there, where = local.native(), remote.native(), ffi.new("char[]", ip.encode())
        desc = ffi.new("HixlClientDesc *")
        desc.local_endpoint, desc.remote_endpoint = here, there
        desc.server_ip, desc.server_port = where, port
        desc.tc, desc.sl = tc, sl
        config, made_p = ffi.new("HixlClientConfig *"), ffi.new("HixlClientHandle *")
        check(lib.cfw_HixlCSClientCreate(desc, config, made_p), "HixlCSClientCreate", ip=ip, port=port)
        super().__init__(made_p[0])

    def connect(self, timeout: float) -> None:
        """Connect within `timeout` seconds. All memory of this side has to be registered before."""
        with self._lock:
            check(lib.cfw_HixlCSClientConnect(self.raw, milliseconds(timeout)), "HixlCSClientConnect", timeout=timeout)

    def remote_memory(self, timeout: float) -> list[RemoteMemory]:
        """What the server has registered."""
        list_p, tags_p, count_p = ffi.new("CommMem **"), ffi.new("char ***"), ffi.new("uint32_t *")
        with self._lock:
            status = lib.cfw_HixlCSClientGetRemoteMem(self.raw, list_p, tags_p, count_p, milliseconds(timeout))
            check(status, "HixlCSClientGetRemoteMem")
            # HIXL owns both lists, until the next call.
            return [
                RemoteMemory(
                    ffi.string(tags_p[0][index]).decode(errors="replace") if tags_p[0] and tags_p[0][index] else "",
                    int(ffi.cast("uintptr_t", list_p[0][index].addr)),
                    int(list_p[0][index].size),
                    list_p[0][index].type == lib.COMM_MEM_TYPE_DEVICE,
                )
                for index in range(count_p[0])
            ]

    def transfer_within(self, put: bool, pieces: Any, count: int, timeout: float) -> None:
        """Move pieces by HIXL's synchronous call.

        When the time is not enough, bytes may still move and nobody can be asked whether they do: keep the memory as it
        is and close the client.
        """
        name = "HixlCSClientBatchPutSync" if put else "HixlCSClientBatchGetSync"
        with self._lock:
            check(_function(name)(self.raw, count, pieces, milliseconds(timeout)), name)
