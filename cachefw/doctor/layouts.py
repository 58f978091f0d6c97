"""The caches of one end against those that the other publishes: a difference is said by field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cachefw.catalog import Diagnosis
from cachefw.doctor.host import broken, note, ok
from cachefw.dry import DryCache

__all__ = ["compare_layouts"]


def compare_layouts(own: Sequence[DryCache], theirs: Sequence[dict[str, Any]]) -> Iterable[Diagnosis]:
    """Say for each cache of this end which of the other end's it can be pulled from, or what differs.

    Args:
        own: What this end would register.
        theirs: What the other publishes: ``id``, ``sort``, ``tensors``, ``rows`` and ``stride`` of each.
    """
    for cache in own:
        name, desc = cache.name, cache.desc
        sort = "blocks" if cache.blocks else "rows"
        mine = {"sort": sort, "tensors": desc.num_tensors, "stride": desc.stride}
        same = [row for row in theirs if all(row[key] == value for key, value in mine.items())]
        if same:
            row = same[0]
            text = f"{name} fits cache {row['id']} there: {desc.num_tensors} tensors, {desc.stride:,} bytes a row"
            if row["rows"] != desc.batch_size:
                text += f"; {desc.batch_size:,} {sort} here, {row['rows']:,} there"
            yield ok(text)
        elif not theirs:
            yield note(f"{name} has nothing to be compared with: the node publishes no cache")
        else:
            for row in theirs:
                differs = "; ".join(_differences(cache, row))
                meaning = "blocks of the one mean other tokens, heads or layers than blocks of the other"
                fix = "give both ends the same block size, element type and parallelism, or pull by layers and convert"
                yield broken(f"{name} differs from cache {row['id']} there: {differs}", meaning, fix)


def _differences(cache: DryCache, row: dict[str, Any]) -> Iterable[str]:
    desc = cache.desc
    sort = "blocks" if cache.blocks else "rows"
    if row["sort"] != sort:
        yield f"dimension 0 counts {sort} here and {row['sort']} there"
    if row["tensors"] != desc.num_tensors:
        yield f"{desc.num_tensors} tensors here, {row['tensors']} there (layers, or pipeline parallelism)"
    if row["stride"] != desc.stride:
        yield f"{desc.stride:,} bytes a {sort[:-1]} here, {row['stride']:,} there{_ratio(desc.stride, row['stride'])}"


def _ratio(here: int, there: int) -> str:
    large, little = max(here, there), min(here, there)
    if little and large % little == 0:
        where = "there" if there > here else "here"
        return f", {large // little} times as many {where} (block size, element type, or tensor parallelism)"
    return " (block size, element type, heads, or tensor parallelism)"
