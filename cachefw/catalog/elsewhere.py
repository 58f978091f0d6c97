"""Who knows what the core does not: for numbers and names of distributions that are not installed."""

from __future__ import annotations

import re

import attrs

__all__ = ["Elsewhere", "elsewhere"]


@attrs.frozen
class Elsewhere:
    """Where to look.

    Attributes:
        pattern: What the name or decimal number looks like.
        owner: Whose it is.
        distribution: What knows it.
    """

    pattern: str
    owner: str
    distribution: str


_ROWS = (
    Elsewhere(r"[125]039\d\d|HIXL_\w+|hixl\.\w+|CACHEFW_HIXL", "HIXL", "cachefw-rdma"),
    Elsewhere(r"[125]0(?!39)\d{4}|ACL_\w+|acl\.\w+|CACHEFW_ASCENDCL|ACLSIM_\w+", "AscendCL", "cachefw-ascendcl"),
    Elsewhere(r"UCS_\w+|ucx\.\w+|CACHEFW_UCX|-\d{1,2}", "UCX", "cachefw-rdma"),
)


def elsewhere(what: str) -> list[Elsewhere]:
    """Whose a name or number seems to be."""
    return [row for row in _ROWS if re.fullmatch(row.pattern, what.strip(), re.IGNORECASE)]
