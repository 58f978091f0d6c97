"""Keys: how a cache, or a row of one, is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachefw.cache import ABSENT_ID
from cachefw.compat.llm_datadist.status import invalid
from cachefw.compat.llm_datadist.utils.utils import check_int64, check_isinstance, check_uint32, check_uint64, near

__all__ = ["BlocksCacheKey", "CacheKey", "CacheKeyByIdAndIndex"]


def _arguments(
    owner: str, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Arguments by name, and the name that the cluster id was given by. Positional ones count before named ones."""
    if len(args) > len(names):
        raise invalid(f"{owner} takes at most {len(names)} arguments, not {len(args)}: {', '.join(names)}")
    known = [*names, "prompt_cluster_id"]
    for name in kwargs:
        if name not in known:
            raise invalid(f"{owner} takes no argument {name!r}{near(name, known)}")
    values = {**kwargs, **dict(zip(names, args, strict=False))}
    alias = "cluster_id"
    if "cluster_id" not in values:
        if "prompt_cluster_id" not in values:
            raise invalid(f"{owner} needs a cluster_id (or prompt_cluster_id)")
        alias = "prompt_cluster_id"
        values["cluster_id"] = values["prompt_cluster_id"]
    return values, alias


class BlocksCacheKey:
    """Names the blocks cache of one model of a cluster.

    Args:
        cluster_id: The cluster's id, or ``prompt_cluster_id``.
        model_id: The model's.

    Raises:
        LLMException: No id, too many arguments, or one of another name.
        TypeError: No integer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values, self._alias = _arguments("BlocksCacheKey", ("cluster_id", "model_id"), args, kwargs)
        self._cluster_id: int = values["cluster_id"]
        self._model_id: int = values.get("model_id", 0)
        check_isinstance(self._alias, self._cluster_id, int)
        check_isinstance("model_id", self._model_id, int)

    @property
    def cluster_id(self) -> int:
        """The cluster's id."""
        return self._cluster_id

    prompt_cluster_id = cluster_id

    @property
    def model_id(self) -> int:
        """The model's id."""
        return self._model_id

    def __repr__(self) -> str:
        return f"BlocksCacheKey({self._alias}={self._cluster_id}, model_id={self._model_id})"


class CacheKey:
    """Names one row of a contiguous cache by the request or the prefix it holds; ``2**64 - 1`` is no id.

    Args:
        cluster_id: The cluster's id, or ``prompt_cluster_id``.
        req_id: The request's.
        model_id: The model's.
        prefix_id: The prefix's.

    Raises:
        LLMException: No cluster id or no req_id, too many arguments, or one of another name.
        TypeError: No integer.
        ValueError: Not within 64 bits.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = ("cluster_id", "req_id", "model_id", "prefix_id")
        values, self._alias = _arguments("CacheKey", names, args, kwargs)
        if "req_id" not in values:
            raise invalid("CacheKey needs a req_id; 2**64 - 1 where there is a prefix_id instead")
        self._cluster_id = check_uint64(self._alias, values["cluster_id"])
        self._req_id = check_uint64("req_id", values["req_id"])
        self._model_id = check_uint64("model_id", values.get("model_id", 0))
        self._prefix_id = check_uint64("prefix_id", values.get("prefix_id", ABSENT_ID))

    @property
    def cluster_id(self) -> int:
        """The cluster's id."""
        return self._cluster_id

    prompt_cluster_id = cluster_id

    @property
    def req_id(self) -> int:
        """The request's id."""
        return self._req_id

    @property
    def model_id(self) -> int:
        """The model's id."""
        return self._model_id

    @property
    def prefix_id(self) -> int:
        """The prefix's id."""
        return self._prefix_id

    def __repr__(self) -> str:
        return (
            f"CacheKey({self._alias}={self._cluster_id}, req_id={self._req_id}, prefix_id={self._prefix_id}, "
            f"model_id={self._model_id})"
        )


class CacheKeyByIdAndIndex:
    """Names one row of a cache by the id that registration or allocation gave.

    Raises:
        TypeError: No integer.
        ValueError: Not within 64, 63 and 32 bits.
    """

    def __init__(self, cluster_id: int, cache_id: int, batch_index: int = 0) -> None:
        self._cluster_id = check_uint64("cluster_id", cluster_id)
        self._cache_id = check_int64("cache_id", cache_id)
        self._batch_index = check_uint32("batch_index", batch_index)

    @property
    def cluster_id(self) -> int:
        """The cluster's id."""
        return self._cluster_id

    @property
    def cache_id(self) -> int:
        """The cache's id."""
        return self._cache_id

    @property
    def batch_index(self) -> int:
        """The row."""
        return self._batch_index

    def __repr__(self) -> str:
        return (
            f"CacheKeyByIdAndIndex(cluster_id={self._cluster_id}, cache_id={self._cache_id}, "
            f"batch_index={self._batch_index})"
        )
