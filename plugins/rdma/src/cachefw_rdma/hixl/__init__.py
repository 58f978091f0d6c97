"""The second provider of the RDMA transport: the NIC on an Ascend device, through HIXL's C interface.

Unverified on hardware: written from HIXL's documentation and sources, and tested against a library of our own that has
the same functions. The README beside this file says what that leaves open.

Importing this package loads nothing native: `HixlProvider.probe` does.
"""

from __future__ import annotations

from .provider import VERIFIED, HixlProvider
from .rules import RULES

__all__ = ["RULES", "VERIFIED", "HixlProvider"]
