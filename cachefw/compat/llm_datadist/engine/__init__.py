"""The engine below the interface: options, links, caches and transfers, on a `cachefw.Node`."""
