"""What the codes of links mean."""

from __future__ import annotations

from cachefw.catalog import Cause, Entry

__all__ = ["ENTRIES"]


def _code(name: str, title: str, *causes: Cause) -> Entry:
    return Entry(name, "code", title, causes=causes)


_OTHER_VERSION = Cause("the two ends have different versions of cachefw", "install the same on both", "packages")

ENTRIES: tuple[Entry, ...] = (
    _code(
        "link.listen",
        "the address cannot be bound",
        Cause("another process listens there", "take port 0, which is a free one, or end that process", "ports"),
        Cause("the address is none of this host's", "listen on one that is", "network"),
        Cause("ports below 1024 need a privilege", "take a higher one"),
    ),
    _code(
        "link.unreachable",
        "nothing answers at that address",
        Cause("no node listens there: not started yet, or gone", "start it; `node.address` has its real port"),
        Cause("the peer listens on loopback only", "have it listen on an address that reaches here"),
        Cause("a firewall or a container's network keeps the two apart", "open the port, publish it", "network"),
    ),
    _code(
        "link.timeout",
        "no link was made in time",
        Cause("the peer hangs, is stopped, or has not started", "look at its process"),
        Cause("packets get lost on the way, large ones perhaps (MTU)", "`cachefw doctor HOST:PORT`", "network"),
        Cause("connecting the transport takes longer than the setting", "set CACHEFW_LINK_TIMEOUT", "settings"),
    ),
    _code(
        "link.silent",
        "a linked peer did not answer in time",
        Cause(
            "its process is stopped or overloaded",
            "look at it; raise CACHEFW_LINK_TIMEOUT if it is only slow",
            "settings",
        ),
    ),
    _code(
        "link.lost",
        "the connection closed without a goodbye",
        Cause("the peer's process ended or was killed", "look at its log, start it, link again"),
        Cause("the network failed", "`cachefw doctor HOST:PORT`", "network"),
    ),
    _code(
        "link.protocol",
        "the other side does not speak this protocol as it should",
        Cause("another program listens at that port", "check the port", "ports"),
        _OTHER_VERSION,
    ),
    _code(
        "link.restarted",
        "the node behind the card was started again since the card was made",
        Cause("the peer was restarted", "get a new card from it (`node.card()`); what it had published is gone"),
    ),
    _code(
        "link.same_cluster",
        "both nodes have the same cluster id",
        Cause("every process was given the same number", "give each node a cluster id of its own"),
    ),
    _code(
        "link.self",
        "a node cannot link to itself",
        Cause("the address is this node's own", "give the peer's; within a node its CacheManager copies"),
    ),
    _code("link.already", "there is a link to this peer; it is returned instead of a second one"),
    _code("link.crossed", "both ends dialled at once, and the other dial makes the link"),
    _code("link.closed", "the link was closed on this side", Cause("`unlink()` or `close()` was called", "link again")),
    _code(
        "link.broken",
        "the link is down, by the peer's doing or the network's",
        Cause("the peer closed it or was restarted", "link again; the reason is in the message"),
        Cause("the network failed", "`cachefw doctor HOST:PORT`", "network"),
    ),
    _code(
        "link.unsettled",
        "a peer whose link has ended has not said that it is done with memory of this node",
        Cause(
            "its process is stopped, or the network between the two is down",
            "wait until it runs again, or has ended; the memory is kept until then",
        ),
    ),
    _code(
        "link.flood",
        "the peer sent notifications that nobody reads",
        Cause("the application does not call `Node.notifications()`", "call it now and then, also if it drops them"),
    ),
    _code(
        "closed.forked",
        "a node or manager was used in a process that was forked from its own",
        Cause(
            "multiprocessing, or a data loader, forks where it could spawn", "multiprocessing.set_start_method('spawn')"
        ),
    ),
    _code(
        "closed.dangling",
        "the owner of registered memory has released or moved it",
        Cause("the tensor was resized or freed, or the allocation closed", "unregister memory first, and free it then"),
    ),
    _code(
        "link.hangup",
        "the other side closed the connection without a word",
        Cause("a proxy or another program listens at that port", "check the port", "ports"),
        Cause("the node has TLS, and this one has not", "give both nodes tls=, or neither", "settings"),
        Cause("the node was being closed", "link again"),
    ),
    _code(
        "link.busy",
        "the node has no room for one more handshake",
        Cause("many nodes start at once", "nothing: linking tries again until its timeout", "settings"),
        Cause(
            "something opens connections and says nothing", "see who does; put a firewall before the port", "network"
        ),
        Cause("handshakes from this address failed too often", "see why, and wait a minute"),
    ),
)
