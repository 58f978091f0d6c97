"""Writes a line of JSON to the file ``REGISTRATION_AUDIT`` for each native registration and for each that failed."""

import json
import os
import sys
import threading
import time

from cachefw import hookimpl

_lock = threading.Lock()


def _write(event, transport, region, error=None):
    line = {
        "time": time.time(),
        "pid": os.getpid(),
        "event": event,
        "transport": transport.info.name,
        "address": hex(region.address),
        "length": region.length,
        "kind": str(region.kind),
        "error": error and str(error),
    }
    path = os.environ.get("REGISTRATION_AUDIT")
    with _lock:
        if path:
            with open(path, "a", encoding="utf-8") as file:
                print(json.dumps(line), file=file)
        else:
            print(json.dumps(line), file=sys.stderr)


@hookimpl(wrapper=True)
def cachefw_register_memory(region, transport):
    try:
        registered = yield
    except Exception as error:
        _write("refused", transport, region, error)
        raise
    _write("registered", transport, region)
    return registered


@hookimpl(wrapper=True)
def cachefw_unregister_memory(registered, transport):
    done = yield
    _write("given back", transport, registered.region)
    return done
