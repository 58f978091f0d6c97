"""What a plugin changes in the process while it is loaded, beyond bringing itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

__all__ = ["Footprint"]

_SIGNALS = sorted(map(int, signal.valid_signals()))


@attrs.frozen
class Footprint:
    """The state of this process that belongs to the application and not to a plugin.

    Attributes:
        handlers: What Python does on each signal.
        caught: The signals that the kernel hands to a handler or ignores, Python's and native ones.
        environment: The environment variables.
        threads: Names of Python's threads, by identity.
        tasks: The kernel's threads; empty where there is no ``/proc``.
    """

    handlers: Mapping[int, Any]
    caught: frozenset[int]
    environment: Mapping[str, str]
    threads: Mapping[int, str]
    tasks: frozenset[int]

    @classmethod
    def now(cls) -> Footprint:
        """Look."""
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        threads = {id(thread): thread.name for thread in threading.enumerate()}
        tasks = frozenset(map(int, os.listdir("/proc/self/task"))) if os.path.isdir("/proc/self/task") else frozenset()
        return cls(handlers, _caught(), dict(os.environ), threads, tasks)

    def changes(self, own: threading.Thread | None = None) -> list[tuple[str, str]]:
        """What is different now: for each kind of change (``signal``, ``environment``, ``threads``) a sentence.

        Another thread of the application may have done it meanwhile. Values of variables are left out: they may be
        secret.

        Args:
            own: A thread of ours that is no change.
        """
        now = Footprint.now()
        found = []
        signals = {number for number, handler in now.handlers.items() if handler is not self.handlers.get(number)}
        signals |= now.caught ^ self.caught
        if signals:
            found.append(
                ("signal", f"it changed what happens on {', '.join(_signal_name(n) for n in sorted(signals))}")
            )
        names = {name for name in {*now.environment, *self.environment} if self._variable(name) != now._variable(name)}
        if names:
            found.append(("environment", f"it changed the environment variables {', '.join(sorted(names))}"))
        started = sorted(name for number, name in now.threads.items() if number not in {*self.threads, id(own)})
        native = len(now.tasks - self.tasks - {own.native_id if own else None}) - len(started)
        if started or native > 0:
            words = [f"{len(started)} of Python's ({', '.join(started)})"] if started else []
            words += [f"{native} native"] if native > 0 else []
            found.append(("threads", f"it started threads: {' and '.join(words)}"))
        return found

    def _variable(self, name: str) -> str | None:
        return self.environment.get(name)


def _caught() -> frozenset[int]:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:
        return frozenset()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return frozenset(bit + 1 for mask in masks for bit in range(mask.bit_length()) if mask >> bit & 1)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
