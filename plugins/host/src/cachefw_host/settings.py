"""The settings of this transport: their defaults, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import attrs

from cachefw.errors import RequestError, refusal

from .card import DEFAULT_PATHS
from .status import TRANSPORT

__all__ = ["Settings", "checked"]

_NAMES = ("threads", "cpus", "paths", "streams", "listen", "tcp_timeout")


@attrs.frozen
class Settings:
    """As described at `HostTransport`.

    Attributes:
        asked: Whether ``tcp`` was named, rather than being there by default.
        listen: Host and port of the data port; None: the node's host and any port.
    """

    threads: int
    cpus: list[int]
    paths: tuple[str, ...]
    asked: bool
    streams: int
    listen: tuple[str, int] | None
    tcp_timeout: float


def checked(settings: Mapping[str, Any]) -> Settings:
    """The settings, whole.

    Raises:
        RequestError: Also a `ValueError`: one is unknown, or some are wrong; all are named.
    """
    unknown = sorted(set(settings) - set(_NAMES))
    if unknown:
        raise refusal(
            RequestError,
            {ValueError},
            f"transport {TRANSPORT!r} has no setting {', '.join(unknown)}; it has {', '.join(_NAMES)}",
            operation="open",
            transport=TRANSPORT,
        )
    allowed = os.sched_getaffinity(0)
    threads = settings.get("threads", min(8, len(allowed)))
    cpus = list(settings.get("cpus", sorted(allowed)))
    paths = tuple(settings.get("paths", DEFAULT_PATHS))
    streams = settings.get("streams", min(4, len(allowed)))
    timeout = settings.get("tcp_timeout", 15.0)
    listen = settings.get("listen")
    wrong = []
    if not _whole(threads, 1, 256):
        wrong.append(f"threads must be 1 to 256, not {threads!r}")
    if not all(isinstance(cpu, int) and cpu >= 0 for cpu in cpus):
        wrong.append(f"cpus must be a list of processor numbers, not {cpus!r}")
    if not paths or set(paths) - set(DEFAULT_PATHS):
        wrong.append(f"paths must name some of {', '.join(DEFAULT_PATHS)}, not {paths!r}")
    if not _whole(streams, 1, 32):
        wrong.append(f"streams must be 1 to 32, not {streams!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0.1 <= timeout <= 3600:
        wrong.append(f"tcp_timeout must be 0.1 to 3600 seconds, not {timeout!r}")
    address = None if listen is None else _address(listen)
    if listen is not None and address is None:
        wrong.append(f"listen must be 'host:port' with a port of 0 to 65535, not {listen!r}")
    if wrong:
        raise refusal(RequestError, {ValueError}, "; ".join(wrong), operation="open", transport=TRANSPORT)
    return Settings(threads, cpus, paths, "tcp" in settings.get("paths", ()), streams, address, float(timeout))


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _address(text: Any) -> tuple[str, int] | None:
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)
