"""The core's own rules, which hold for every transport.

Each rule reads a `Draft`: the raw arguments of one registration next to what could be made of them. A rule looks only
at what it can, so that one wrong argument does not hide what else is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cachefw.cache import BlocksCacheKey, CacheDesc, CacheKey, Placement, as_int
from cachefw.drafts import Draft, Holder
from cachefw.errors import CacheError
from cachefw.memory import MemoryKind, MemoryRegion, element_size
from cachefw.rules import Finding, Outcome, Rule

__all__ = ["CACHE_RULES", "COUNTED", "MEMORY_RULES", "address_list", "published"]

_VENDOR = "LLM-DataDist CacheManager"
_OURS = "cachefw"
_TOP = 2**64
#: Calls whose addresses are limited together; what is allocated is one native region.
COUNTED = ("register_cache", "register_blocks_cache")


def _refuse(message: str, fix: str, builtin: type[Exception] = ValueError, **more: Any) -> Finding:
    return Finding("", Outcome.REFUSED, message, fix=fix, builtin=builtin, **more)


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count:,} bytes"


def _shown(value: object) -> str:
    """A wrong argument as it was given, and not all of it when it is long."""
    text = repr(value)
    return f"{text if len(text) <= 100 else text[:97] + '...'} ({type(value).__name__})"


def _hex(value: int) -> str:
    return hex(value) if value >= 0 else f"-{-value:#x}"


def address_list(addrs: Any) -> list[Any] | None:
    """The addresses as a list, or None when `addrs` is no list of addresses."""
    if isinstance(addrs, (list, tuple)):
        return list(addrs)
    if isinstance(addrs, np.ndarray) and addrs.ndim == 1 and addrs.dtype.kind in "iu":
        return [int(address) for address in addrs]
    return None


def _arguments(draft: Draft) -> Iterable[Finding]:
    wanted = [("cache_desc", draft.desc, isinstance(draft.desc, CacheDesc), "a CacheDesc")]
    wanted.append(("addrs", draft.addrs, address_list(draft.addrs) is not None, "a list of addresses"))
    if draft.blocks:
        ok = draft.keys is None or isinstance(draft.keys, BlocksCacheKey)
        wanted.append(("blocks_cache_key", draft.keys, ok, "a BlocksCacheKey or None"))
    else:
        wanted.append(("cache_keys", draft.keys, isinstance(draft.keys, (list, tuple)), "a tuple or list of CacheKey"))
        for index, key in enumerate(draft.key_list):
            wanted.append((f"cache_keys[{index}]", key, isinstance(key, CacheKey), "a CacheKey"))
    for name, value, ok, wish in wanted:
        if not ok:
            found = "is None" if value is None else f"is {_shown(value)}"
            builtin = AttributeError if value is None else TypeError
            yield _refuse(f"{name} {found}", f"give {wish}", builtin)
    yield from _told(draft)


def _told(draft: Draft) -> Iterable[Finding]:
    told = draft.remote_accessible
    if told is not None and not isinstance(told, bool):
        yield _refuse(f"remote_accessible is {_shown(told)}", "give True, False or None", TypeError)


def _count(draft: Draft) -> Iterable[Finding]:
    if not isinstance(draft.desc, CacheDesc) or address_list(draft.addrs) is None:
        return
    wanted, given = draft.desc.num_tensors, len(draft.given)
    facts = {"num_tensors": wanted, "addresses": given}
    if wanted < 1 or wanted != given:
        yield _refuse(
            f"cache_desc.num_tensors is {wanted} and addrs has {given}",
            "give one address for each tensor, and at least one",
            facts=facts,
        )


def _address(draft: Draft) -> Iterable[Finding]:
    size = draft.length or 1
    for index, raw in enumerate(draft.given):
        address = as_int(raw)
        if index in draft.sources:
            continue
        if address is None:
            builtin = AttributeError if raw is None else TypeError
            found = "None" if raw is None else _shown(raw)
            yield _refuse(
                f"{draft.place(index)} is {found}",
                "give the tensor, or its start address as an int",
                builtin,
                index=index,
            )
        elif not 0 < address < _TOP:
            what = "is 0, which no tensor has" if address == 0 else f"is {_hex(address)}, not within 1 ... 2^64 - 1"
            yield _refuse(
                f"{draft.place(index)} {what}", "give the tensor's data pointer", index=index, address=address
            )
        elif address + size > _TOP:
            yield _refuse(
                f"{draft.place(index)} {address:#x} plus {_bytes(size)} wraps past 2^64",
                "check the address and the shape",
                index=index,
                address=address,
                length=size,
                facts={"excess": address + size - _TOP},
            )


def _source(draft: Draft) -> Iterable[Finding]:
    for index, (source, region) in draft.sources.items():
        place = draft.place(index)
        if isinstance(region, CacheError):
            builtin = next(kind for kind in (AttributeError, TypeError, ValueError) if isinstance(region, kind))
            yield _refuse(f"{place}: {region}", "give memory that is one run of bytes", builtin, index=index)
        elif draft.sized is not None:
            for text, fix, facts in _unlike(place, source, region, draft.sized):
                at, length = region.address, region.length
                yield _refuse(text, fix, index=index, address=at, length=length, facts=facts)


def _unlike(
    place: str, source: object, region: MemoryRegion, desc: CacheDesc
) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """What a tensor has that its description does not say: message, fix and facts."""
    if region.length < desc.size:
        shape = f"a tensor of {list(desc.shape)} {desc.data_type.name}"
        text = f"{place} has {_bytes(region.length)}, and {shape} has {_bytes(desc.size)}"
        yield text, "give a tensor that large, or correct the shape", {"found": region.length, "needed": desc.size}
    item, needed = element_size(source), desc.data_type.itemsize
    if item is not None and item != needed:
        text = f"{place} has elements of {_bytes(item)}, and those of {desc.data_type.name} have {_bytes(needed)}"
        fix = "correct the data_type, or give a view of the tensor with that element type"
        yield text, fix, {"found": item, "needed": needed}
    if (region.kind is MemoryKind.DEVICE) != (desc.placement is Placement.DEVICE):
        text = f"{place} is {region.kind}, and the placement of cache_desc is {desc.placement.name}"
        yield text, "correct the placement, or give the tensor that is there", {"found": str(region.kind)}


def _size(draft: Draft) -> Iterable[Finding]:
    if not isinstance(draft.desc, CacheDesc):
        return
    desc = draft.desc
    shape = list(desc.shape)
    if not shape:
        yield _refuse("shape has no dimension", "give the elements of each dimension; the first counts rows or blocks")
    for axis, dim in enumerate(shape):
        if dim < 1:
            hint = " (a size that is only known later cannot be registered)" if dim == -1 else ""
            yield _refuse(f"shape[{axis}] of {shape} is {dim}{hint}", "make every dimension at least 1")
    if shape and min(shape) > 0 and desc.size >= 2**63:
        yield _refuse(
            f"a tensor of {shape} {desc.data_type.name} has {desc.size:,} bytes, more than 2^63 - 1",
            "check the shape",
            facts={"bytes": desc.size},
        )


def _length(draft: Draft) -> Iterable[Finding]:
    if draft.length is not None and draft.length < 1:
        yield _refuse(
            f"the region's length is {draft.length}",
            "give at least 1 byte",
            address=draft.given[0],
            length=draft.length,
        )


def _unique(draft: Draft) -> Iterable[Finding]:
    for clash in draft.overlaps:
        new, old = clash.region, clash.holder.region
        same = new.address == old.address
        again = clash.holder_index
        other = f"{old} of {clash.holder.owner}" if again is None else draft.place(again)
        if new == old and again is None and draft.remote_accessible and not clash.holder.remote_accessible:
            text = (
                f"{draft.place(clash.index)} {new} is to be reached by peers, and is {clash.holder.owner}, which is not"
            )
            fix = "register it with remote_accessible=True from the start"
        elif same and new.length == old.length:
            text = f"{draft.place(clash.index)} {new.address:#x} is given already by {other}"
            fix = "give each address once; to let several caches share memory, register it once with register_memory"
        elif same:
            wider = "longer" if new.length > old.length else "shorter"
            text = (
                f"{draft.place(clash.index)} {new} starts where {other} does and is "
                f"{_bytes(abs(new.length - old.length))} {wider}"
            )
            fix = (
                "two users disagree about the size of one tensor: agree on it, or register the wider range once with "
                "register_memory"
            )
        else:
            shared = min(new.end, old.end) - max(new.address, old.address)
            text = f"{draft.place(clash.index)} {new} overlaps {other} by {_bytes(shared)}"
            if new.address >= old.address and new.end > old.end:
                text += f"; it ends {_bytes(new.end - old.end)} past that end"
            fix = "check the address and the shape; ranges may touch and not overlap"
        yield _refuse(
            text,
            fix,
            index=clash.index,
            address=new.address,
            length=new.length,
            facts={
                "other_address": old.address,
                "other_length": old.length,
                "other_index": clash.holder_index,
                "owner": clash.holder.owner,
                "difference": abs(new.length - old.length),
            },
        )


def _limit_addresses(draft: Draft) -> Iterable[Finding]:
    if draft.operation not in COUNTED:
        return
    counts = {call: count for call, count in draft.counts.items() if call in COUNTED}
    held = sum(counts.values())
    new = len(draft.given)
    if held + new > draft.limits.addresses:
        by_call = ", ".join(f"{count} by {call}" for call, count in sorted(counts.items()) if count) or "none"
        joined = _joined_count(draft.regions)
        fix = "unregister caches"
        if joined < len(draft.regions):
            fix = (
                f"the {len(draft.regions)} new ranges touch and make {joined}: describe them as fewer, larger tensors, "
                "or unregister caches"
            )
        yield _refuse(
            f"{held + new} addresses exceed the limit of {draft.limits.addresses}: {new} new, {held} held ({by_call})",
            fix,
            facts={"registered": held, "new": new, "limit": draft.limits.addresses, "joined": joined},
            source=draft.limits.source,
        )


def _joined_count(regions: Sequence[tuple[int, MemoryRegion]]) -> int:
    spans = sorted((region.address, region.end) for _, region in regions)
    gaps = sum(1 for (_, end), (start, _) in itertools.pairwise(spans) if end != start)
    return gaps + bool(spans)


def _limit_bytes(draft: Draft, device: bool) -> Iterable[Finding]:
    new = sum(region.length for _, region in draft.regions if (region.kind is MemoryKind.DEVICE) == device)
    held = draft.device_bytes if device else draft.host_bytes
    limit = draft.limits.device_bytes if device else draft.limits.host_bytes
    if new and held + new > limit:
        kind, name = ("device", "device_bytes") if device else ("host", "host_bytes")
        gib = 2**30
        yield _refuse(
            f"{new / gib:.2f} GiB of {kind} memory after {held / gib:.2f} GiB make {(held + new) / gib:.2f} GiB, "
            f"more than {limit / gib:g} GiB",
            f"register less, or raise the limit where the machine allows it: Limits({name}=...)",
            facts={"registered": held, "new": new, "total": held + new, "limit": limit},
            source=draft.limits.source,
        )


def _order(draft: Draft) -> Iterable[Finding]:
    if not draft.linked:
        return
    for index, region in draft.regions:
        if region.kind is MemoryKind.DEVICE and _published(draft):
            yield _refuse(
                f"{draft.place(index)} is device memory that peers are to reach, and a link exists already",
                "register device memory before linking (unlink first), or pass remote_accessible=False",
                index=index,
                address=region.address,
                length=region.length,
            )


def _published(draft: Draft) -> bool:
    return published(draft.remote_accessible, [region for _, region in draft.regions], [h for _, h in draft.views])


def published(told: bool | None, regions: Sequence[MemoryRegion], holders: Sequence[Holder]) -> bool:
    """Whether peers may reach memory: as told; else device memory yes, host memory no, and a view like its memory."""
    if told is not None:
        return told is True
    return all(r.kind is MemoryKind.DEVICE for r in regions) and all(h.remote_accessible for h in holders)


def _access(draft: Draft) -> Iterable[Finding]:
    if draft.remote_accessible is not True:
        return
    for index, holder in draft.views:
        if not holder.remote_accessible:
            yield _refuse(
                f"{draft.place(index)} is to be reached by peers, and lies in {holder.owner}, which is not",
                "register that memory with remote_accessible=True",
                index=index,
                address=draft.given[index],
                length=draft.length,
            )


def _keys(draft: Draft) -> Iterable[Finding]:
    keys = [(i, key) for i, key in enumerate(draft.key_list) if isinstance(key, (CacheKey, BlocksCacheKey))]
    rows = draft.sized.batch_size if draft.sized else None
    if not draft.blocks and rows is not None and len(draft.key_list) > rows:
        yield _refuse(
            f"{len(draft.key_list)} cache_keys for {rows} batch rows",
            "give at most one key for each row of dimension 0; key i names row i",
            facts={"keys": len(draft.key_list), "rows": rows},
        )
    seen: dict[tuple[str, int, int], int] = {}
    for index, key in keys:
        where = "blocks_cache_key" if draft.blocks else f"cache_keys[{index}]"
        if isinstance(key, CacheKey):
            if key.is_placeholder:
                continue
            if key.has_request == key.has_prefix:
                both = key.has_request
                yield _refuse(
                    f"{where} has {'both req_id and prefix_id' if both else 'neither req_id nor prefix_id'}",
                    "give exactly one of them; CacheKey(cluster_id, req_id=ABSENT_ID) keeps a row free",
                    facts={"key": index},
                )
                continue
        name = key.local_name
        if name in seen:
            yield _refuse(
                f"{where} and cache_keys[{seen[name]}] are the same key {key}",
                "give each key once",
                facts={"key": index},
            )
        elif name in draft.taken_keys:
            yield _refuse(
                f"{where} {key} names cache {draft.taken_keys[name]} already",
                "unregister that cache first, or use another key",
                facts={"key": index, "cache_id": draft.taken_keys[name]},
            )
        seen.setdefault(name, index)


#: For `register_cache` and `register_blocks_cache`, in the order of a plan.
CACHE_RULES: tuple[Rule, ...] = (
    Rule("core.arguments", "every argument has the right type", _VENDOR, _arguments),
    Rule("core.count", "one address for each tensor, and at least one", _VENDOR, _count),
    Rule("core.address", "addresses are integers from 1, and no tensor wraps past 2^64", _VENDOR, _address),
    Rule("core.source", "a tensor given for an address is one run of bytes and what cache_desc says", _OURS, _source),
    Rule("core.size", "every dimension is at least 1 and the size is exact", _VENDOR, _size),
    Rule("core.unique", "no byte is registered twice", _VENDOR, _unique),
    Rule(
        "core.limit.addresses",
        "the addresses of both register calls together stay within the limit",
        _VENDOR,
        _limit_addresses,
    ),
    Rule("core.limit.device_bytes", "device memory stays within the limit", _VENDOR, lambda d: _limit_bytes(d, True)),
    Rule("core.limit.host_bytes", "host memory stays within the limit", _VENDOR, lambda d: _limit_bytes(d, False)),
    Rule("core.order", "device memory that peers reach is registered before linking", _VENDOR, _order),
    Rule("core.access", "what peers reach lies in memory that they may reach", _OURS, _access),
    Rule("core.keys", "keys are unique, name one thing each, and fit the batch", _VENDOR, _keys),
)

#: For `register_memory`.
MEMORY_RULES: tuple[Rule, ...] = (
    Rule("core.arguments", "every argument has the right type", _OURS, _told),
    Rule("core.size", "the region has at least 1 byte", _OURS, _length),
    *(
        rule
        for rule in CACHE_RULES
        if rule.name.removeprefix("core.") in ("address", "unique", "limit.device_bytes", "limit.host_bytes", "order")
    ),
)
