"""The whole kit in one class."""

from __future__ import annotations

from cachefw.testing._calls import CallTests
from cachefw.testing._capabilities import CapabilityTests
from cachefw.testing._closing import ClosingTests
from cachefw.testing._contract import ContractTests
from cachefw.testing._errors import BatchErrorTests, MalformedTests
from cachefw.testing._faults import FaultTests
from cachefw.testing._lifecycle import LifecycleTests
from cachefw.testing._machine import MachineTests, TransportMachine
from cachefw.testing._peers import PeerTests
from cachefw.testing._registration import AllocationTests, CopyTests, IdentifyTests, RegistrationTests
from cachefw.testing._transfers import LateTests, TransferTests

__all__ = ["TransportMachine", "TransportTests"]


class TransportTests(
    LifecycleTests,
    RegistrationTests,
    AllocationTests,
    IdentifyTests,
    CopyTests,
    CapabilityTests,
    TransferTests,
    LateTests,
    BatchErrorTests,
    MalformedTests,
    ContractTests,
    CallTests,
    ClosingTests,
    FaultTests,
    PeerTests,
    MachineTests,
):
    """Checks that a transport keeps the contract of `cachefw.transport`.

    Derive a class named ``Test...`` in a test module, and override the fixture ``transport_info``; where needed
    ``transport_settings`` (what `Transport.open` gets) and ``make_memory`` (how to get memory that the transport does
    not allocate, or that has no array). Nothing else is to be written: the capabilities in the info decide what runs,
    and what does not apply is skipped with the reason.

    Both ends are in this process. Each test also fails when it hangs, or leaves descriptors, threads or mappings.
    """
