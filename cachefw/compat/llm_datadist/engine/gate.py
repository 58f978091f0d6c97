"""Many calls at a time, and none any more once the gate is shut."""

from __future__ import annotations

import threading

__all__ = ["Gate"]


class Gate:
    """Counts who is inside; `shut` lets nobody in any more, and waits for those who are.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self.open = True

    def enter(self) -> bool:
        """Go in; False when it is shut."""
        with self._changed:
            if self.open:
                self._inside += 1
            return self.open

    def leave(self) -> None:
        """Go out."""
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()

    def shut(self) -> bool:
        """Let nobody in, and wait until nobody is inside; False when it was shut before."""
        with self._changed:
            if not self.open:
                return False
            self.open = False
            self._changed.wait_for(lambda: not self._inside)
            return True
