"""What the transfer engines of other libraries have in common: a node, memory and links by address."""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from cachefw.cache import as_int
from cachefw.compat.protocols import near
from cachefw.errors import BrokenError, CacheError, RequestError, refusal
from cachefw.links.link import Link, LinkState
from cachefw.links.transfers import LinkTransfer
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.node import Node
from cachefw.registry import Memory
from cachefw.rules import Limits
from cachefw.transport import Capability, Operation, Transfer

__all__ = [
    "Engine",
    "address_of",
    "decode_note",
    "device_runtime",
    "encode_note",
    "log_error",
    "named_arguments",
    "over",
    "text",
]

_log = logging.getLogger("cachefw.compat")
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def named_arguments(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Have an unknown keyword argument refused with the names that are like it."""
    names = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if kwargs and not kwargs.keys() <= names:
            unknown = min(kwargs.keys() - names)
            known = sorted(names - {"self"})
            raise refusal(
                RequestError,
                {TypeError},
                f"{function.__name__}() has no argument {unknown!r}{near(unknown, known)}; it has {', '.join(known)}",
                operation=function.__name__,
            )
        return function(*args, **kwargs)

    return checked


def address_of(name: str, value: Any) -> int:
    """An address or a size: an unsigned 64-bit integer, as the bindings that these APIs come from take it.

    Raises:
        RequestError: Also a `TypeError`.
    """
    number = int(value) if isinstance(value, bool) else as_int(value)
    if number is None or not 0 <= number < 2**64:
        raise refusal(RequestError, {TypeError}, f"{name} must be an int of 0 to 2^64 - 1, not {value!r}")
    return number


def text(name: str, value: Any) -> str:
    """A `str`, and nothing else.

    Raises:
        RequestError: Also a `TypeError`.
    """
    if not isinstance(value, str):
        raise refusal(RequestError, {TypeError}, f"{name} must be a str, not {value!r} ({type(value).__name__})")
    return value


class _Note(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    name: str
    message: str


def encode_note(name: str, message: str) -> bytes:
    """A notification of two strings, as it travels."""
    return msgspec.msgpack.encode(_Note(name, message))


def decode_note(payload: bytes) -> tuple[str, str]:
    """The two strings; a peer that uses cachefw directly sends bytes, which are the message of a nameless one."""
    try:
        note = msgspec.msgpack.decode(payload, type=_Note)
    except msgspec.MsgspecError:
        return "", payload.decode("utf-8", "replace")
    return note.name, note.message


class Engine:
    """A node whose peers are named by address, and whose memory is given by address.

    Args:
        listen: As for `Node`.
        transports: As for `Node`.
        limits: As for `Node`.
        settings: As for `Node`.

    Raises:
        CacheError: As for `Node`; nothing stays open.

    Thread safety: every method may be called from any thread.
    """

    def __init__(
        self,
        listen: str | None,
        transports: tuple[str, ...],
        limits: Limits | None,
        settings: Mapping[str, Mapping[str, Any]],
    ) -> None:
        # These libraries know their peers by address only. An id that nobody else has keeps two nodes of one address,
        # one after the other, apart.
        self.node = Node(
            int.from_bytes(os.urandom(8), "little"), listen, transports=transports, limits=limits, settings=settings
        )
        self.manager = self.node.cache_manager
        self._links: dict[str, Link] = {}
        #: Addresses that turned out to be this node's own.
        self._mine: set[str] = set()
        self._opened = [self.manager.transport(name) for name in self.manager.transports]
        #: Kinds of memory that the open transports take.
        self.kinds = frozenset(kind for transport in self._opened for kind in transport.info.kinds)
        _open_engines.add(self)
        # For those that are forgotten. At exit finalizers come too late, or not at all: see `_close_all`.
        self._forgotten = weakref.finalize(self, _close_node, self.node)
        self._forgotten.atexit = False

    def close(self) -> None:
        """Close the node and give everything back. Idempotent."""
        _open_engines.discard(self)
        self._forgotten.detach()
        self.node.close()

    # ------------------------------------------------------------------ memory

    def register(self, address: int, length: int, device: bool | None) -> Memory:
        """Register a range that peers may read and write.

        Args:
            address: First byte.
            length: Bytes.
            device: Whether the caller says that it is device memory; None when it says nothing.

        Raises:
            RegistrationError: Holds every broken rule.
        """
        region = MemoryRegion(address, length, self._kind(address, length, device))
        return self.manager.register_memory(region, remote_accessible=True)

    def _kind(self, address: int, length: int, device: bool | None) -> MemoryKind:
        for transport in self._opened:
            if Capability.IDENTIFY in transport.info.capabilities:
                kind = transport.identify(address, length)
                if kind is not None:
                    return kind
        if not device:
            return MemoryKind.HOST
        if MemoryKind.DEVICE in self.kinds:
            return MemoryKind.DEVICE
        # On a machine without a device, what the program calls device memory can only be ordinary memory.
        runtime = device_runtime()
        if runtime is not None:
            raise refusal(
                RequestError,
                {ValueError},
                f"[{address:#x}, {address + length:#x}) is said to be device memory, {runtime} is loaded, and none of "
                f"the open transports ({', '.join(self.manager.transports)}) moves device memory; choose one that does",
                operation="register_memory",
            )
        return MemoryKind.HOST

    # ------------------------------------------------------------------ links

    def link(self, address: str, timeout: float | None = None) -> Link:
        """The link to the node at an address; made when there is none, or only one that is down.

        Raises:
            CacheError: As for `Node.link`.
        """
        link = self._links.get(address)
        if link is not None and link.state is LinkState.UP:
            return link
        link = self.node.link(address, timeout)
        # What is down is of no use any more; a server's clients come and go.
        up = {name: other for name, other in list(self._links.items()) if other.state is LinkState.UP}
        self._links = {**up, address: link}
        return link

    def move(
        self,
        address: str,
        operation: Operation,
        local: Any,
        remote: Any,
        lengths: Any,
        *,
        wait: bool = True,
        timeout: float | None = None,
        note: bytes | None = None,
    ) -> Transfer | None:
        """Move pieces between this process and the node at an address, which may be this one.

        Returns:
            The transfer; None when it is done and there is nothing to look at.

        Raises:
            CacheError: As for `Node.link` and `Link.read`.
        """
        if address not in self._mine:
            try:
                link = self.link(address)
            except BrokenError as error:
                if error.code != "link.self":
                    raise
                self._mine.add(address)
            else:
                return over(link, operation, local, remote, lengths, wait=wait, timeout=timeout, note=note)
        self._copy(operation, local, remote, lengths)
        return None

    def _copy(self, operation: Operation, local: Any, remote: Any, lengths: Any) -> None:
        """What other engines do for a peer that is themselves."""
        if isinstance(lengths, int):
            local, remote, lengths = [local], [remote], [lengths]
        if len({len(local), len(remote), len(lengths)}) != 1:
            raise refusal(
                RequestError,
                {ValueError},
                f"{len(local)} local addresses, {len(remote)} remote addresses and {len(lengths)} lengths; give one of "
                "each",
                operation="transfer",
            )
        here = [MemoryRegion(address, size) for address, size in zip(local, lengths, strict=True) if size]
        there = [MemoryRegion(address, size) for address, size in zip(remote, lengths, strict=True) if size]
        if here:
            self.manager.copy(*((here, there) if operation is Operation.READ else (there, here)))


def over(
    link: Link,
    operation: Operation,
    local: Any,
    remote: Any,
    lengths: Any,
    *,
    wait: bool,
    timeout: float | None,
    note: bytes | None = None,
) -> LinkTransfer | None:
    """Move pieces over a link; pieces of no bytes, which cachefw refuses and these libraries pass over, are left out.

    Raises:
        CacheError: As for `Link.read`.
    """
    go = link.read if operation is Operation.READ else link.write
    try:
        return go(local, remote, lengths, note, wait, timeout)
    except RequestError:
        # Looked for only now: most calls have none.
        single = isinstance(lengths, int)
        sizes = [lengths] if single else list(lengths)
        if 0 not in sizes or (not single and not len(local) == len(remote) == len(sizes)):
            raise
        kept = [] if single else [index for index, size in enumerate(sizes) if size]
    if not kept:
        if note is not None:
            link.notify(note)
        return None
    local, remote = ([addresses[index] for index in kept] for addresses in (local, remote))
    return go(local, remote, [sizes[index] for index in kept], note, wait, timeout)


def log_error(library: str, call: str, error: CacheError, answer: object) -> None:
    """Say in the log what a number cannot."""
    _log.error("%s: %s returns %s: %s", library, call, answer, error)


def device_runtime() -> str | None:
    """The runtime of a real device that this process has loaded, if any."""
    if os.environ.get("CACHEFW_ASCENDCL") == "simulator":
        return None
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.rpartition("/")[2]
        if name.startswith("libascendcl.so"):
            return name
    return None


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _close_node(node: Node) -> None:
    if threading.current_thread().name.startswith("cachefw-"):
        # A collection of garbage may run in any thread, and a node waits for its own when it closes.
        threading.Thread(target=node.close, name="closing").start()
    else:
        node.close()


@atexit.register
def _close_all() -> None:
    """Programs of these libraries just end; they have no call for what they leave, or do not use it."""
    engines: Iterable[Engine] = list(_open_engines)
    for engine in engines:
        engine.close()
