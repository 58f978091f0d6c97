"""How many strangers may stand at the door at once, and how often one address may fail."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Gate"]

#: One address has at most this part of all handshakes under way.
_SHARE = 4
#: Seconds in which an address regains all the failures it may have.
_MINUTE = 60.0
#: Addresses remembered; the one that was seen longest ago is forgotten.
_REMEMBERED = 1024


class Gate:
    """Counts handshakes under way, and failed ones by address. An address that fails too often waits; none is banned.

    Args:
        most: Handshakes under way in all.
        failures: Failed handshakes of one address in a minute.
        clock: Seconds.
    """

    def __init__(self, most: int, failures: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._failures = failures
        self._clock = clock
        self._under_way: dict[str, int] = {}
        self._total = 0
        # By address: how many failures it has left, and when that was so.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def under_way(self) -> int:
        """Handshakes under way."""
        return self._total

    def enter(self, address: str) -> str | None:
        """Begin a handshake: None, or in words why not now."""
        place = _place(address)
        if self._total >= self._most:
            return f"{self._total} handshakes are under way here already"
        mine = self._under_way.get(place, 0)
        if mine >= max(1, self._most // _SHARE):
            return f"{mine} handshakes from {place} are under way here already"
        if self._allowance(place) < 1:
            return f"more than {self._failures} handshakes from {place} failed within a minute"
        self._under_way[place] = mine + 1
        self._total += 1
        return None

    def blame(self, address: str) -> None:
        """Count a handshake as failed, by the fault of who dialled."""
        place = _place(address)
        self._left[place] = self._allowance(place) - 1, self._clock()
        self._left.move_to_end(place)
        while len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)

    def leave(self, address: str) -> None:
        """End a handshake that entered."""
        place = _place(address)
        self._total -= 1
        self._under_way[place] -= 1
        if not self._under_way[place]:
            del self._under_way[place]

    def _allowance(self, place: str) -> float:
        left, since = self._left.get(place, (float(self._failures), 0.0))
        return min(float(self._failures), left + (self._clock() - since) * self._failures / _MINUTE)


def _place(address: str) -> str:
    """The address, or the network of an IPv6 one: a host has 2^64 of those."""
    if ":" not in address:
        return address
    plain = ipaddress.IPv6Address(address.partition("%")[0])
    if plain.ipv4_mapped is not None:
        return str(plain.ipv4_mapped)
    return address if plain.is_loopback else str(ipaddress.ip_network((plain, 64), strict=False))
