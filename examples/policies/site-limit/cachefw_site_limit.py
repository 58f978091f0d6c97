"""A site rule: all managers of a process together register at most ``SITE_LIMIT_GIB`` GiB (8)."""

import collections
import os
import threading

from cachefw import Finding, Outcome, hookimpl

_lock = threading.Lock()
#: How often each range is registered; memory that two managers or transports hold counts once.
_held = collections.Counter()


@hookimpl
def cachefw_validate_memory(request):
    limit = int(float(os.environ.get("SITE_LIMIT_GIB", "8")) * 2**30)
    with _lock:
        new = {(region.address, region.length) for region in request.regions} - set(_held)
        total = sum(length for _, length in _held) + sum(length for _, length in new)
    outcome = Outcome.OK if total <= limit else Outcome.REFUSED
    text = f"{total:,} bytes in this process, of the {limit:,} allowed on this site"
    yield Finding("site.limit", outcome, text, fix="register less, or ask for more", source="the site's rules")


@hookimpl(wrapper=True)
def cachefw_register_memory(region):
    registered = yield
    with _lock:
        _held[region.address, region.length] += 1
    return registered


@hookimpl(wrapper=True)
def cachefw_unregister_memory(registered):
    done = yield
    key = registered.region.address, registered.region.length
    with _lock:
        _held[key] -= 1
        if not _held[key]:
            del _held[key]
    return done
