"""A link in the making: what is asked of it waits until it is up."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import os
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from cachefw.errors import TransferTimeout
from cachefw.forking import forked_error
from cachefw.links.link import Link
from cachefw.links.transfers import LinkTransfer

__all__ = ["PendingLink"]

_Result = TypeVar("_Result")


class PendingLink:
    """What ``Node.link(..., wait=False)`` returns: the link is made in the background.

    ``await pending`` gives the `Link` in a coroutine; `result` does in a thread.

    Attributes:
        peer: The address it goes to.

    Thread safety: every method may be called from any thread.
    """

    def __init__(
        self, peer: str, made: concurrent.futures.Future[Link], aside: Callable[[Callable[[], None]], None]
    ) -> None:
        self.peer = peer
        self._made = made
        self._process = os.getpid()
        self._lock = threading.Lock()
        # What waits, in the order in which it was asked for; None once it has all begun.
        self._queue: collections.deque[Callable[[], None]] | None = collections.deque()
        # Not in the node's own thread, which `Link.read` may have to wait for.
        made.add_done_callback(lambda _: aside(self._begin))

    @property
    def done(self) -> bool:
        """Whether the link is up, or will never be."""
        return self._made.done()

    def result(self, timeout: float | None = None) -> Link:
        """Wait for the link.

        Args:
            timeout: Seconds; None waits as long as the linking itself may take.

        Raises:
            CacheError: What `Node.link` would have raised.
            TransferTimeout: It is not up yet.
        """
        if os.getpid() != self._process:
            raise forked_error("link", "PendingLink")
        try:
            return self._made.result(timeout)
        except concurrent.futures.TimeoutError:
            if self._made.done():
                raise
            raise TransferTimeout(
                f"the link to {self.peer} is not up after {timeout:g} s", code="link.timeout", operation="link"
            ) from None

    def add_done_callback(self, callback: Callable[[PendingLink], None]) -> None:
        """Have ``callback(self)`` called once it is `done`: at once, or from the node's thread; it must not block."""
        self._made.add_done_callback(lambda _: callback(self))

    def read(self, *args: Any, **kwargs: Any) -> concurrent.futures.Future[LinkTransfer]:
        """`Link.read` with ``wait=False``, once the link is up.

        Returns:
            A future of the posted transfer. It fails with what `Link.read` raises, or with what kept the link down.
        """
        return self._later(lambda link: link.read(*args, **{**kwargs, "wait": False}))

    def write(self, *args: Any, **kwargs: Any) -> concurrent.futures.Future[LinkTransfer]:
        """`Link.write` with ``wait=False``, once the link is up. Everything else is as for `read`."""
        return self._later(lambda link: link.write(*args, **{**kwargs, "wait": False}))

    def queue(self, call: Callable[..., _Result], *args: Any, **kwargs: Any) -> concurrent.futures.Future[_Result]:
        """Any call that needs the link, e.g. ``manager.pull_blocks``, once it is up; calls begin in their order.

        Args:
            call: It should not wait long (``wait=False``), since the next one begins after it.
            *args: Its arguments.
            **kwargs: Its arguments.

        Returns:
            A future of what it returns. It fails with what `call` raises, or with what kept the link down.
        """
        return self._later(lambda _: call(*args, **kwargs))

    def _later(self, call: Callable[[Link], _Result]) -> concurrent.futures.Future[_Result]:
        posted: concurrent.futures.Future[_Result] = concurrent.futures.Future()

        def begin() -> None:
            if not posted.set_running_or_notify_cancel():
                return
            try:
                posted.set_result(call(self._made.result()))
            except (Exception, concurrent.futures.CancelledError) as error:
                posted.set_exception(error)

        with self._lock:
            if self._queue is not None:
                self._queue.append(begin)
                return posted
        begin()
        return posted

    def _begin(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._queue = None
                    return
                begin = self._queue.popleft()
            begin()

    def __await__(self) -> Generator[Any, None, Link]:
        return asyncio.wrap_future(self._made).__await__()

    def __repr__(self) -> str:
        return f"<PendingLink to {self.peer}, {'done' if self.done else 'being made'}>"
