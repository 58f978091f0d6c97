"""The exception tree.

Families say whose doing a failure is, so that a caller can decide what to do without reading text: the caller's own
(`RegistrationError`, `RequestError`, `ClosedError`), two users of one thing (`BusyError`), the outside world
(`BrokenError`, `TransferTimeout`), something that is not offered here (`UnsupportedOperation`,
`TransportUnavailable`), a plugin's (`PluginError`), or a stranger's (`AuthenticationError`). Each is also the builtin
that fits, so both ways of catching work, and every one survives pickling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from cachefw.catalog import Entry

__all__ = [
    "AuthenticationError",
    "BrokenError",
    "BusyError",
    "CacheError",
    "ClosedError",
    "NotFoundError",
    "OutOfMemoryError",
    "PluginError",
    "RegistrationError",
    "RequestError",
    "TransferCancelled",
    "TransferTimeout",
    "TransportUnavailable",
    "UnsupportedOperation",
    "refusal",
]


class CacheError(Exception):
    """The root of everything cachefw raises on purpose; not raised itself.

    Attributes:
        code: Short and stable name of this kind of failure, to branch on instead of the text.
        operation: The public call that failed, e.g. ``"register_cache"``.
        transport: Name of the transport concerned, or None.
        peer: The other end (``"host:port"`` or ``"cluster 2"``), or None.
        status: The number a kernel, driver or vendor library gave, or None.
        detail: The text that belongs to `status`, or None.
        findings: Every broken rule (`cachefw.Finding`), for refusals.
        facts: Further values, by name: what was asked and what was found.
    """

    default_code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        operation: str | None = None,
        transport: str | None = None,
        peer: str | None = None,
        status: int | None = None,
        detail: str | None = None,
        findings: Iterable[Any] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.operation = operation
        self.transport = transport
        self.peer = peer
        self.status = status
        self.detail = detail
        self.findings = tuple(findings)
        self.facts = dict(facts or {})

    @property
    def message(self) -> str:
        """The text, as `str()` gives it."""
        return str(self.args[0])

    @property
    def entry(self) -> Entry | None:
        """What the catalogue says of `code`: its meaning, and likely causes with what to do; None when it has none."""
        from cachefw.catalog import lookup

        return lookup(self.code)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # The builtins beside CacheError each pickle in a way of their own; one way for all keeps every attribute.
        return _rebuild, (type(self), self.message), dict(self.__dict__)


def _rebuild(cls: type[CacheError], message: str) -> CacheError:
    return cls(message)


class RegistrationError(CacheError):
    """Memory was refused before anything native was touched, or a native registration failed and was undone.

    Not raised for a transfer. A refusal is also a `ValueError`, `TypeError` or `AttributeError` (for None) — all that
    apply, when one call breaks rules of several kinds.
    """

    default_code = "registration.refused"


class RequestError(CacheError):
    """The arguments of a call other than a registration cannot be right; nothing was sent or changed.

    Not raised when the peer or the system failed. Also a `ValueError`, `TypeError` or `AttributeError`, like
    `RegistrationError`.
    """

    default_code = "request.invalid"


class NotFoundError(RequestError, LookupError):
    """A cache, key, block, layer, link or memory that was named does not exist; the text lists what does.

    Not raised for something that was closed: that is `ClosedError`.
    """

    default_code = "not_found"


class ClosedError(CacheError, RuntimeError):
    """The object was closed, by this process, before the call.

    Not raised when the peer went away: that is `BrokenError`.
    """

    default_code = "closed"


class BusyError(CacheError, RuntimeError):
    """Something else is using the object now; the same call can work later.

    Not raised for a deadline that passed: that is `TransferTimeout`.
    """

    default_code = "busy"


class BrokenError(CacheError, ConnectionError):
    """The outside world failed: the peer, the network, the kernel or a driver. `status` has its number.

    Not raised for arguments that could be checked here. For a transfer, ``failed`` has the index of the item at which
    it stopped.
    """

    default_code = "broken"

    @property
    def failed(self) -> tuple[int, ...]:
        """Indices of the items known to have failed, in the order they were asked for; () if none is known."""
        return tuple(self.facts.get("failed", ()))


class TransferTimeout(CacheError, TimeoutError):
    """A deadline passed. It does not mean that nothing moves any more: see `settled`.

    Not raised when the peer is known to be gone: that is `BrokenError`.
    """

    default_code = "timeout"

    @property
    def settled(self) -> bool:
        """True when no byte of the transfer can land any more; False keeps its buffers in use until it settles."""
        return bool(self.facts.get("settled", True))


class TransferCancelled(CacheError):
    """The transfer was cancelled before all of it had moved; which bytes moved is not known.

    Not raised for a deadline that passed, which cancels nothing: that is `TransferTimeout`.
    """

    default_code = "cancelled"


class UnsupportedOperation(CacheError, NotImplementedError):
    """The transport does not offer this ability (its `capabilities` say so).

    Not raised for an ability that is offered and failed.
    """

    default_code = "unsupported"


class TransportUnavailable(CacheError):
    """No transport of that name can be used here: not installed, its runtime is missing, or the two ends share none.

    Not raised when a transport's plugin is broken: that is `PluginError`.
    """

    default_code = "transport.unavailable"


class PluginError(CacheError):
    """A plugin broke the contract of `cachefw.hookspecs` or `cachefw.transport`; the text names its distribution.

    Not raised for a plugin whose runtime is missing: that is `TransportUnavailable`.
    """

    default_code = "plugin"


class OutOfMemoryError(CacheError, MemoryError):
    """Memory could not be allocated; the text has the size asked for and the limit that was met.

    Not raised by registration: a limit there is a rule, and breaking it is a `RegistrationError`.
    """

    default_code = "memory"


class AuthenticationError(CacheError, PermissionError):
    """A peer could not prove who it is, or may not do what it asked.

    Not raised when the peer cannot be reached: that is `BrokenError`.
    """

    default_code = "authentication"


_BUILTINS: tuple[type[Exception], ...] = (AttributeError, TypeError, ValueError)


def _with_builtins(family: type[CacheError]) -> dict[frozenset[type[Exception]], type[CacheError]]:
    """Subclasses of `family` that are also each combination of the builtins, importable by name so that they pickle."""
    made: dict[frozenset[type[Exception]], type[CacheError]] = {frozenset(): family}
    for mask in range(1, 1 << len(_BUILTINS)):
        builtins = [b for i, b in enumerate(_BUILTINS) if mask >> i & 1]
        name = (
            family.__name__.removesuffix("Error")
            + "".join(b.__name__.removesuffix("Error") for b in builtins)
            + "Error"
        )
        cls = type(name, (family, *builtins), {"__doc__": family.__doc__, "__module__": __name__})
        globals()[name] = cls
        made[frozenset(builtins)] = cls
    return made


_VARIANTS: dict[type[CacheError], dict[frozenset[type[Exception]], type[CacheError]]] = {
    family: _with_builtins(family) for family in (RegistrationError, RequestError)
}


def refusal(family: type[CacheError], builtins: Iterable[type[Exception]], message: str, **fields: Any) -> CacheError:
    """Make an error of `family` that is also each of `builtins`.

    Args:
        family: `RegistrationError` or `RequestError`.
        builtins: Any of `TypeError`, `ValueError`, `AttributeError`.
        message: The whole text.
        **fields: The attributes of `CacheError`.
    """
    return _VARIANTS[family][frozenset(builtins)](message, **fields)
