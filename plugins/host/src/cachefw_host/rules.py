"""What host memory has to be."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from pathlib import Path

from cachefw.memory import Access, MemoryKind
from cachefw.rules import Finding, Outcome, Request, Rule

__all__ = ["RULES"]

_MAPS = Path("/proc/self/maps")


def _kind(request: Request) -> Iterable[Finding]:
    for index, region in zip(request.indices, request.regions, strict=True):
        if region.kind is not MemoryKind.HOST:
            yield Finding(
                "",
                Outcome.REFUSED,
                f"{request.place(index)} {region.address:#x} is {region.kind}; this transport moves host memory",
                index=index,
                address=region.address,
                length=region.length,
                fix="set placement=Placement.HOST if it is host memory, or open a transport for that kind",
            )


def mappings() -> list[tuple[int, int, str]]:
    """(start, end, permissions) of this process's mappings, neighbours of equal permissions joined, by address."""
    joined: list[tuple[int, int, str]] = []
    for line in _MAPS.read_text().splitlines():
        span, rights = line.split(None, 2)[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if joined and joined[-1][1] == start and joined[-1][2] == rights[:2]:
            joined[-1] = (joined[-1][0], end, rights[:2])
        else:
            joined.append((start, end, rights[:2]))
    return joined


def _mapped(request: Request) -> Iterable[Finding]:
    regions = [(i, r) for i, r in zip(request.indices, request.regions, strict=True) if r.kind is MemoryKind.HOST]
    if not regions:
        return
    if request.dry:
        yield Finding(
            "",
            Outcome.NOT_CHECKED,
            "the addresses are made up; whether the memory is mapped shows only in its own process",
            fix="CacheManager.plan() in the process that has the memory checks it",
        )
        return
    try:
        table = mappings()
    except OSError as error:
        yield Finding("", Outcome.NOT_CHECKED, f"{_MAPS} cannot be read: {error}", fix="mount /proc")
        return
    starts = [start for start, _, _ in table]
    for index, region in regions:
        row = bisect.bisect_right(starts, region.address) - 1
        reached, lacking = region.address, ""
        while row >= 0 and row < len(table) and reached < region.end:
            start, end, rights = table[row]
            if not start <= reached < end:
                break
            lacking = lacking or _lacking(rights, region.access)
            reached, row = end, row + 1
        if reached < region.end:
            where = "is not mapped at all" if reached == region.address else f"is mapped only up to {reached:#x}"
            yield Finding(
                "",
                Outcome.REFUSED,
                f"{request.place(index)} {region} {where}",
                index=index,
                address=region.address,
                length=region.length,
                facts={"mapped_to": reached, "missing": region.end - reached},
                fix="check the address and the shape; the memory must stay mapped while it is registered",
            )
        elif lacking:
            yield Finding(
                "",
                Outcome.REFUSED,
                f"{request.place(index)} {region} is mapped without the right to {lacking}",
                index=index,
                address=region.address,
                length=region.length,
                fix="map it readable and writable",
            )


def _lacking(rights: str, access: Access) -> str:
    missing = [] if rights[0] == "r" else ["read"]
    if Access.WRITE in access and rights[1] != "w":
        missing.append("write")
    return " and ".join(missing)


RULES: tuple[Rule, ...] = (
    Rule("host.kind", "the memory is host memory", "cachefw", _kind),
    Rule("host.mapped", "the memory is mapped, readable and writable", "proc(5), /proc/pid/maps", _mapped),
)
