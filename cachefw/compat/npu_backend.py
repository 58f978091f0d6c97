"""What torch wants registered of a backend before it says what accelerator there is; it does nothing."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["register"]

#: Torch keeps no reference of its own.
_kept: list[Any] = []


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def register() -> None:
    """Register both. Once in a process, after the backend has its name."""
    hooks, guard = _Hooks(), _Guard()
    _kept.extend((hooks, guard))
    torch._C._acc.register_python_privateuseone_hook(hooks)
    torch._C._acc.register_python_privateuseone_device_guard(guard)
