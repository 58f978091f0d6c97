"""What the parts of a CacheManager work on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cachefw.cache import Cache
from cachefw.copying import Copier
from cachefw.errors import CacheError, ClosedError, RequestError, refusal
from cachefw.registrar import Registrar
from cachefw.registry import Registry
from cachefw.transport import Transport

__all__ = ["Managed", "during"]


@contextlib.contextmanager
def during(operation: str) -> Iterator[None]:
    """Have the errors of shared checks name the public call."""
    try:
        yield
    except CacheError as error:
        error.operation = operation
        raise


class Managed:
    """What `cachefw.CacheManager`, which derives from its parts, brings to each of them."""

    _registrar: Registrar
    _registry: Registry
    _transports: dict[str, Transport]
    _copier: Copier

    def _check_open(self, operation: str) -> None:
        raise NotImplementedError

    def _drop_seals(self, cache_id: int) -> None:
        raise NotImplementedError

    def _own(self, cache: Any, operation: str) -> Cache:
        if not isinstance(cache, Cache):
            builtin: type[Exception] = AttributeError if cache is None else TypeError
            text = f"give the Cache that a register call returned, not {cache!r} ({type(cache).__name__})"
            raise refusal(RequestError, {builtin}, text, operation=operation)
        if self._registry.caches.get(cache.cache_id) is not cache:
            raise ClosedError(f"{cache} is not registered here, or no longer", operation=operation)
        return cache
