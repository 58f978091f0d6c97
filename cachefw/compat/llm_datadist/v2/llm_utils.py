"""Helpers of the public calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachefw.cache import ABSENT_ID
from cachefw.compat.llm_datadist.engine.moves import Layers
from cachefw.compat.llm_datadist.status import LLMStatusCode, LLMTypeError, wrong_type
from cachefw.compat.llm_datadist.utils.utils import check_elements, check_isinstance, check_uint32, near, require
from cachefw.compat.llm_datadist.v2._keys import CacheKey
from cachefw.compat.llm_datadist.v2._transfers import check_layer_range

__all__ = ["pull_layers", "push_layers"]

_PULL_OPTIONS = ("src_layer_range", "dst_layer_range", "tensor_num_per_layer")


def check_one_id(key: Any) -> None:
    """Check that a `CacheKey` names exactly one of a request and a prefix; other keys pass.

    Raises:
        LLMException: Both or neither.
    """
    if isinstance(key, CacheKey):
        both = ABSENT_ID not in (key.req_id, key.prefix_id)
        require(
            both is False and key.req_id != key.prefix_id,
            f"{key} has {'both' if both else 'neither'} req_id and prefix_id; give exactly one".replace(
                "neither req_id and", "neither req_id nor"
            ),
        )


def pull_layers(operation: str, options: Mapping[str, Any], key: Any) -> Layers:
    """The layers that the keyword arguments of a pull name; an empty range is all layers.

    Args:
        operation: The public call.
        options: Its keyword arguments.
        key: The key it pulls by.

    Raises:
        TypeError: A wrong type; also an LLMException for an argument of another name.
        ValueError: A number outside its machine range.
        LLMException: Another wrong value.
    """
    for name in options:
        if name not in _PULL_OPTIONS:
            raise LLMTypeError(
                f"{operation} takes no argument {name!r}{near(name, _PULL_OPTIONS)}",
                status_code=LLMStatusCode.LLM_PARAM_INVALID,
                operation=operation,
            )
    if not options:
        check_one_id(key)
        return _EVERY
    per_layer = _per_layer(options.get("tensor_num_per_layer", 2))
    check_one_id(key)
    return Layers(
        _pull_range("src_layer_range", options.get("src_layer_range")),
        _pull_range("dst_layer_range", options.get("dst_layer_range")),
        per_layer,
    )


_EVERY = Layers()


def _per_layer(value: Any) -> int:
    check_uint32("tensor_num_per_layer", value)
    require(value > 0, "tensor_num_per_layer must be at least 1")
    return int(value)


def _pull_range(name: str, layers: Any) -> range | None:
    check_isinstance(name, layers, range)
    if layers is None:
        return None
    require(layers.step == 1, f"{name} must have step 1, not {layers}")
    if not len(layers):
        return None
    require(layers.start >= 0, f"{name} must start at 0 or later, not {layers}")
    check_uint32(name, layers.stop - 1)
    return range(layers.start, layers.stop)


def push_layers(src: Any, dst: Any, per_layer: Any, tensors: int) -> Layers:
    """The layers of a push; those that are not named are all of the source's, on both sides.

    Raises:
        TypeError: A wrong type.
        ValueError: A number outside its machine range.
        LLMException: Another wrong value, or no layer at all.
    """
    number = _per_layer(per_layer)
    check_layer_range("src_layer_range", src)
    check_layer_range("dst_layer_range", dst)
    every = range(tensors // number)
    require(
        src is not None or len(every),
        f"{tensors} tensors make no layer of {number}, so nothing would be pushed; set tensor_num_per_layer",
    )
    src, dst = every if src is None else src, every if dst is None else dst
    require(len(src) == len(dst), f"src_layer_range {src} and dst_layer_range {dst} must be of one length")
    return Layers(src, dst, number)


def check_blocks(name: str, blocks: Sequence[int]) -> None:
    """Check the numbers in a list of blocks: called when something was found wrong, which keeps good calls fast.

    Raises:
        TypeError: One is no integer, or below 0.
    """
    check_elements(name, blocks, int)
    for index, block in enumerate(blocks):
        if block < 0:
            raise wrong_type(f"{name}[{index}] must be 0 or more, not {block}")
