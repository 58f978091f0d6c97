"""What the status codes of LLM-DataDist mean, for those who read them in its logs or use its API through cachefw."""

from __future__ import annotations

from cachefw.catalog import Cause, Entry

__all__ = ["ENTRIES"]

_BASE = 0x5010B000
_OLD = "; the present version of LLM-DataDist never gives it"


def _status(name: str, number: int, title: str, *causes: Cause) -> Entry:
    spelt = (f"{number:#x}",) if number > 0 else ()
    return Entry(
        str(number), "status", title, "LLM-DataDist", (name, f"LLMStatusCode.{name}", *spelt), causes, "LLMStatusCode"
    )


_RELINK = Cause("the link to the peer is dead", "unlink and link again; the old link does not come back")

ENTRIES: tuple[Entry, ...] = (
    _status(
        "LLM_FAILED",
        0xFFFFFFFF,
        "something failed that has no code of its own; not recoverable",
        Cause("another LLMDataDist lives in this process", "finalize it first; there can be one"),
        Cause("memory or a cache was registered natively and refused", "read the log for the driver's own number"),
        Cause("the address to listen on cannot be bound", "take a free port", "ports"),
    ),
    _status("LLM_WAIT_PROCESS_TIMEOUT", _BASE + 1, "the other side did not process the request in time"),
    _status(
        "LLM_KV_CACHE_NOT_EXIST",
        _BASE + 2,
        "the cache that was named does not exist",
        Cause("the local cache was not registered, or the key names another", "compare both ends' keys"),
        Cause("the peer's cache is not remote-accessible, or was unregistered", "register it before linking"),
    ),
    _status("LLM_REPEAT_REQUEST", _BASE + 3, f"the request was made already{_OLD}"),
    _status("LLM_REQUEST_ALREADY_COMPLETED", _BASE + 4, f"the request is complete already{_OLD}"),
    _status(
        "LLM_PARAM_INVALID",
        _BASE + 5,
        "an argument has the right type and a wrong value",
        Cause(
            "num_tensors differs from the number of addresses, or a dimension is not positive", "correct the cache_desc"
        ),
        Cause("an address is given twice, or overlaps", "give each range once"),
        Cause("the key's cluster is this node's own", "name the peer's cluster"),
    ),
    _status("LLM_ENGINE_FINALIZED", _BASE + 6, f"the engine was finalized{_OLD}"),
    _status(
        "LLM_NOT_YET_LINK",
        _BASE + 7,
        "there is no link to that cluster",
        Cause(
            "link_clusters was not called, or failed for this cluster", "link first; look at each cluster's own code"
        ),
        Cause("the link was lost meanwhile", "link again"),
    ),
    _status(
        "LLM_ALREADY_LINK",
        _BASE + 8,
        "there is a link to that cluster",
        Cause("both ends still hold the link of an earlier run", "unlink with force=True, then link"),
    ),
    _status(
        "LLM_LINK_FAILED",
        _BASE + 9,
        "the link could not be made",
        Cause("nothing listens at the remote address", "start the peer first; compare the port", "ports"),
        Cause(
            "the two ends disagree about HCCS or RoCE, TLS, or the rank table", "set both alike; compare the variables"
        ),
        Cause(
            "memory was not registered as the link needs it, e.g. not at a multiple of 2 MB",
            "check it: cachefw plan FILE",
        ),
    ),
    _status("LLM_UNLINK_FAILED", _BASE + 10, "the link could not be closed", Cause("the peer is gone", "force=True")),
    _status("LLM_NOTIFY_PROMPT_UNLINK_FAILED", _BASE + 11, f"the prompt side could not be told{_OLD}"),
    _status("LLM_CLUSTER_NUM_EXCEED_LIMIT", _BASE + 12, f"more than 16 clusters in one call{_OLD}"),
    _status("LLM_PROCESSING_LINK", _BASE + 13, f"a link is being made{_OLD}"),
    _status("LLM_DEVICE_OUT_OF_MEMORY", _BASE + 14, f"the device ran out of memory{_OLD}"),
    _status("LLM_PREFIX_ALREADY_EXIST", _BASE + 15, f"the prefix exists already{_OLD}"),
    _status("LLM_PREFIX_NOT_EXIST", _BASE + 16, f"there is no such prefix{_OLD}"),
    _status("LLM_SEQ_LENOVERLIMIT", _BASE + 17, f"the sequence is too long{_OLD}"),
    _status("LLM_NO_FREE_BLOCK", _BASE + 18, f"no block is free{_OLD}"),
    _status("LLM_BLOCKS_OUT_OF_MEMORY", _BASE + 19, f"there is no memory for blocks{_OLD}"),
    _status(
        "LLM_EXIST_LINK",
        _BASE + 24,
        "this cannot be done while a link exists",
        Cause("switch_role was called with links up", "unlink all clusters first"),
    ),
    _status(
        "LLM_FEATURE_NOT_ENABLED",
        _BASE + 25,
        "the feature is not offered by this configuration",
        Cause("the call belongs to the other transfer backend", "use link_clusters, or another backend"),
        Cause("a memory pool is needed and none was configured", "set the pool in the options of init"),
    ),
    _status(
        "LLM_TIMEOUT",
        _BASE + 26,
        "the time was not enough; after a transfer the link is dead",
        _RELINK,
        Cause("the peer started later than the timeout allows", "start it first, or wait longer"),
        Cause("the network drops packets", "cachefw doctor HOST:PORT", "network"),
    ),
    _status("LLM_LINK_BUSY", _BASE + 27, f"the link is used by another call{_OLD}, which waits instead"),
    _status(
        "LLM_OUT_OF_MEMORY",
        _BASE + 28,
        "the memory pool is used up",
        Cause("caches were allocated and not given back", "deallocate them, or configure a larger pool"),
    ),
    _status(
        "LLM_DEVICE_MEM_ERROR",
        507053,
        "the device's memory has a fault; the runtime's own number, passed on",
        Cause("a hardware fault", "see the device's health with its tool, and take it out of service"),
    ),
    _status(
        "LLM_SUSPECT_REMOTE_ERROR",
        507057,
        "the other device seems to have a fault; the runtime's own number, passed on; not recoverable",
        Cause("the peer's process or device failed in the middle of a transfer", "look at the peer, then link again"),
    ),
    _status("LLM_UNKNOWN_ERROR", -1, "a number that LLM-DataDist itself does not know"),
)
