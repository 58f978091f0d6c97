"""The settings of the provider ``ucx``, and what UCX is told because of them."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from cachefw.errors import CacheError, RequestError, refusal

from .staging import BUFFERS
from .status import TRANSPORT

__all__ = ["ERROR_MODES", "WITHOUT_CARDS", "Settings", "checked", "refused"]

_SHARED = {"self", "shm", "sm", "mm", "posix", "sysv", "cma", "knem", "xpmem"}
#: UCX's transports that need no card.
WITHOUT_CARDS = {"tcp", *_SHARED}
ERROR_MODES = ("auto", "peer", "none")
#: What UCX is told where it may use shared memory alone.
_SHARED_VARIABLES = {
    # Without these it does not watch over peers there. Where it may use a card or tcp as well, it would then prefer
    # shared memory to those, and there a peer that dies can do more harm.
    "UCX_POSIX_ERROR_HANDLING": "y",
    "UCX_SYSV_ERROR_HANDLING": "y",
    "UCX_KEEPALIVE_INTERVAL": "500ms",
    # A queue has 256 places of this size. Once it is full, both ends lose time until they wake each other again.
    "UCX_POSIX_SEG_SIZE": "32k",
    "UCX_SYSV_SEG_SIZE": "32k",
}
#: Requests of a transfer at a time, and bytes of each at most (0: the native side's choice). What is asked for at a
#: time has to fit into such a queue.
_FLOW, _SHARED_FLOW = (64, 0), (16, 256 * 2**10)

#: One opening at a time changes the process's variables.
_variables = threading.Lock()


@attrs.frozen
class Settings:
    """Checked settings; see `cachefw_rdma.ucx.UcxProvider`."""

    tls: str | None = None
    net_devices: str | None = None
    inflight: int | None = None
    error_mode: str = "auto"
    device: int = 0
    staging_bytes: int = 32 * 2**20
    peer_memory: bool = False

    @property
    def _shared(self) -> bool:
        """Whether UCX may use shared memory and nothing else."""
        names = self.tls or os.environ.get("UCX_TLS", "")
        return bool(names) and set(names.split(",")) <= _SHARED

    @property
    def flow(self) -> tuple[int, int]:
        """Requests at a time, and bytes of each at most."""
        count, size = _SHARED_FLOW if self._shared else _FLOW
        return (count if self.inflight is None else self.inflight), size

    def ucx(self) -> dict[str, str]:
        """Those that are UCX's, by its names without UCX_."""
        given = {"TLS": self.tls, "NET_DEVICES": self.net_devices}
        if self.peer_memory:
            # The CPU must not touch a byte of it, which UCX would have it do for small messages.
            given["ZCOPY_THRESH"] = "0"
        return {name: value for name, value in given.items() if value is not None}

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Inside, UCX is opened: its inner layers take settings from nothing but variables. The user's are kept."""
        given = _SHARED_VARIABLES if self._shared and self.error_mode != "none" else {}
        with _variables:
            ours = {name: value for name, value in given.items() if name not in os.environ}
            os.environ.update(ours)
            try:
                yield
            finally:
                for name in ours:
                    os.environ.pop(name, None)


def checked(settings: Mapping[str, Any]) -> Settings:
    """The settings, whose names are known.

    Raises:
        RequestError: Some are wrong; the text has all of them.
    """
    made = Settings(**settings)
    wrong = []
    for name in ("tls", "net_devices"):
        value = getattr(made, name)
        if value is not None and (not isinstance(value, str) or not value or "\0" in value):
            wrong.append(f"{name} must be names separated by commas, not {value!r}")
    numbers = {"inflight": (1, 4096), "device": (0, 2**31 - 1), "staging_bytes": (BUFFERS * mmap.PAGESIZE, 2**36)}
    for name, (least, most) in numbers.items():
        value = getattr(made, name)
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        if not fits and not (value is None and name == "inflight"):
            wrong.append(f"{name} must be {least} to {most}, not {value!r}")
    if made.error_mode not in ERROR_MODES:
        wrong.append(f"error_mode must be one of {', '.join(ERROR_MODES)}, not {made.error_mode!r}")
    if not isinstance(made.peer_memory, bool):
        wrong.append(f"peer_memory must be True or False, not {made.peer_memory!r}")
    if wrong:
        raise refused("; ".join(wrong))
    return made


def refused(text: str) -> CacheError:
    """The error of a setting."""
    return refusal(RequestError, {ValueError}, text, operation="open", transport=TRANSPORT)
