"""A device ``"npu"`` for torch on machines without one, so that the vendor's sample programs run on a laptop.

Acts only on request: with ``CACHEFW_NPU=1`` it is there as soon as torch is imported (PyTorch calls `autoload` for the
entry point of the group ``torch.backends``), or after `activate`. Otherwise importing torch costs one look at the
environment.

    torch.npu.set_device(0)
    tensor = torch.ones(2, 3, device="npu")      # or torch.ones(2, 3).npu()
    tensor.device, tensor.is_npu, tensor.data_ptr()

What it is: a tensor on ``"npu"`` is a tensor of the CPU that says otherwise. Its bytes are ordinary memory; with
``CACHEFW_ASCENDCL=simulator`` and ``ACLSIM_MODE=open`` they are memory of an emulated device, unless
``CACHEFW_TRANSPORTS`` names only transports that have none. Either way ``data_ptr()`` is the address to register.

What it is not:

- No operation runs anywhere but on the CPU, nothing is asynchronous, and streams and events wait for nothing.
- Mixing tensors of the CPU and of the device is not refused, as hardware would.
- Only the factories of the ``torch`` namespace, ``Tensor.to``, ``Tensor.npu`` and what is derived from a device tensor
  know the device. ``with torch.device("npu")``, ``set_default_device``, generators, modules, graphs and
  ``torch.compile`` do not; torch then raises `NotImplementedError` for the backend 'npu'.
- Pinned memory is not to be had: torch takes the device for the accelerator that would make it.
- Of ``torch.npu`` there is what programs need around transfers; another name is an `AttributeError` that lists them.
- With ``torch_npu`` installed it refuses to start.

It was tried with torch 2.13 on CPUs.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["activate", "autoload", "current_device"]


def autoload() -> None:
    """What PyTorch calls at the end of ``import torch``.

    Raises:
        RequestError: Also a `ValueError`: ``CACHEFW_NPU`` is neither 0 nor 1.
        UnsupportedOperation: As for `activate`.
    """
    if not os.environ.get("CACHEFW_NPU"):
        return
    from cachefw.config import setting

    if setting("npu"):
        activate()


def activate() -> None:
    """Give torch the device; doing so again does nothing.

    Raises:
        UnsupportedOperation: ``torch_npu`` is installed, or torch has another backend of its own kind already.
    """
    from cachefw.compat import npu_torch

    npu_torch.activate()


def current_device() -> int:
    """The number that ``torch.npu.set_device`` was given last; 0 before, and where the shim is not active."""
    shim: Any = sys.modules.get("cachefw.compat.npu_torch")
    return 0 if shim is None else int(shim.current)
