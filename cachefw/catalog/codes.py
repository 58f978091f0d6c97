"""What cachefw's own codes mean, those of links and transports aside."""

from __future__ import annotations

from cachefw.catalog import Cause, Entry

__all__ = ["ENTRIES"]


def _code(name: str, title: str, *causes: Cause) -> Entry:
    return Entry(name, "code", title, causes=causes)


ENTRIES: tuple[Entry, ...] = (
    # ---- the families
    _code("error", "a failure that has no code of its own"),
    _code(
        "closed",
        "the object was closed by this process before the call",
        Cause(
            "another thread, or the end of a `with` block, closed the node, manager or transport",
            "keep it open for as long as it is used, or make a new one",
        ),
    ),
    _code(
        "busy",
        "something else is using the object now; the same call can work later",
        Cause("a transfer still uses the memory", "wait for the transfer (`wait()`), then call again"),
    ),
    _code(
        "broken",
        "the outside failed: the peer, the network, the kernel or a driver",
        Cause(
            "`status` and `detail` of the error have what it said",
            "look its number up: `cachefw explain NUMBER`",
            probe="system",
        ),
    ),
    _code(
        "timeout",
        "a deadline passed; `settled` tells whether bytes may still land",
        Cause("the peer hangs or is stopped", "look at the peer's process; the transfer settles when it goes on"),
        Cause("the deadline is short for so many bytes", "give a longer timeout, or set CACHEFW_TIMEOUT", "settings"),
    ),
    _code("cancelled", "the transfer was cancelled before all of it had moved"),
    _code(
        "unsupported",
        "the transport does not offer this ability",
        Cause(
            "`cachefw transports` shows what each transport can do",
            "use what it offers, or another transport",
            probe="plugins",
        ),
    ),
    _code(
        "memory",
        "memory could not be allocated",
        Cause(
            "the host, or the container's limit, has too little left",
            "allocate less, or raise the limit",
            "memory.free",
        ),
        Cause("no huge pages are reserved", "reserve some with sysctl vm.nr_hugepages", "memory.huge_pages"),
    ),
    _code(
        "authentication",
        "a peer could not prove who it is, or may not do what it asked",
        Cause("the two ends do not have the same secret", "give both the same one", "settings"),
    ),
    # ---- requests
    _code(
        "request.invalid",
        "the arguments cannot be right; nothing was sent or changed",
        Cause("the message says which argument, what was given and what is wanted", "correct the call"),
    ),
    _code(
        "request.rights",
        "the peer published the memory without the right that the transfer needs",
        Cause("the region was registered read-only there", "register it there with the right to write (`Access`)"),
    ),
    _code("not_found", "what was named does not exist; the message lists what does"),
    _code(
        "not_found.block",
        "a block number lies beyond the cache",
        Cause(
            "the two ends do not have the same number of blocks, or block 0 was counted as 1",
            "compare both caches; blocks count from 0",
        ),
    ),
    _code(
        "not_found.cache",
        "no cache has that id or key",
        Cause(
            "the cache is not remote-accessible: host memory is not by default",
            "register it there with remote_accessible=True",
        ),
        Cause("it was registered under another cluster id, model id or request id", "compare the keys of both ends"),
        Cause("it was unregistered", "ask `link.caches` for what there is now"),
    ),
    _code(
        "not_found.memory",
        "a range does not lie in one registered region",
        Cause("the memory was not registered, or given back", "`manager.memories` lists what is registered"),
        Cause("the range reaches over the end of its region", "give parts of one region each"),
    ),
    _code(
        "not_found.layer",
        "a layer number lies beyond the cache",
        Cause("the two ends split the layers otherwise (pipeline parallelism)", "compare num_tensors of both caches"),
    ),
    _code(
        "not_found.link",
        "no link leads to that cluster",
        Cause("`link()` was not called, or the link broke", "link again; `node.links` has those that are up"),
        Cause("the key names this node's own cluster", "give the peer's cluster id"),
    ),
    _code(
        "not_found.row",
        "a batch row lies beyond the cache",
        Cause("dimension 0 of the two caches differs", "compare batch_size of both"),
    ),
    # ---- names of nodes
    _code(
        "not_found.peer",
        "no node has that name now",
        Cause("it is not started yet, or its entry ended with its process", "start it; the message lists who is there"),
        Cause(
            "it announces itself under another prefix, or to another etcd", "give both the same endpoints and prefix"
        ),
    ),
    _code(
        "directory.unreachable",
        "the store of the nodes' names does not answer",
        Cause(
            "it is not running, or the address is another", "look with `etcdctl --endpoints HOST:PORT endpoint health`"
        ),
        Cause("it speaks TLS and this node does not, or the other way round", "give tls= the CA, certificate and key"),
    ),
    _code(
        "directory.refused",
        "the store of the nodes' names answered with an error",
        Cause(
            "it demands a user and password, which the client does not speak", "let it know its clients by certificates"
        ),
        Cause("it has lost its quorum, or its disk is full", "look at its log; the message has what it said"),
    ),
    _code(
        "directory.entry",
        "what stands under a name is no entry of cachefw's",
        Cause("somebody else writes below the same prefix", "give the nodes a prefix of their own"),
    ),
    _code(
        "directory.taken",
        "a node elsewhere has the name",
        Cause("two nodes were given the same name", "give each its own"),
        Cause("the node moved to another address, and its former entry has not ended yet", "wait until its lease ends"),
    ),
    # ---- contents
    _code(
        "content.unsealed",
        "a pull is to be verified, and its owner has not sealed what it asks for",
        Cause("`seal` was not called there", "call manager.seal(cache, blocks) once the bytes are complete"),
        Cause("the link's transport takes no host memory, where the seals lie", "pull without verify"),
    ),
    _code(
        "content.changed",
        "what was pulled was sealed anew, or opened, before the last byte was here",
        Cause("its owner gave the blocks to another request", "ask for it again, or compute it here"),
        Cause("the generations are of an earlier seal", "take those that the latest `seal` returned"),
    ),
    _code(
        "content.mismatch",
        "the bytes that arrived have another sum than those that were sealed",
        Cause(
            "its owner changed them without `unseal`", "call `unseal` there before blocks are used for something else"
        ),
        Cause("something here wrote to the target during the pull", "leave the target alone until the pull returns"),
        Cause("memory or a transport has a fault", "run `cachefw doctor`, and report it with its bundle"),
    ),
    # ---- registration
    _code(
        "registration.refused",
        "memory was refused before anything native was touched",
        Cause(
            "several rules are broken; each stands in the message with what to do",
            "`cachefw explain RULE` says more about each; `manager.plan(...)` shows all rules as a table",
        ),
    ),
    _code(
        "registration.native",
        "a native registration failed and was undone, or giving memory back failed and it stays registered",
        Cause("what may be locked is too little", "raise RLIMIT_MEMLOCK", "limits.memlock"),
        Cause("the memory was unmapped meanwhile", "keep it alive for as long as it is registered"),
        Cause("the driver or device refused; `status` has its number", "`cachefw explain NUMBER`"),
    ),
    _code(
        "registration.failed",
        "the network card or device did not take the memory",
        Cause("what may be locked is too little", "raise RLIMIT_MEMLOCK", "limits.memlock"),
        Cause("the memory is not mapped, or not writable", "map it readable and writable"),
        Cause("the device takes no more, or none so large", "register less, or several regions"),
    ),
    _code(
        "core.plugin",
        "the rules of a plugin could not be run, so that nothing is registered",
        Cause(
            "the plugin has a fault, or its runtime does not answer",
            "mend what the message names, or leave the plugin out",
            probe="plugins",
        ),
    ),
    _code(
        "core.transport",
        "no open transport takes memory of that kind",
        Cause(
            "only transports of another kind of memory are open",
            "open one that takes it: transports=[...], or CACHEFW_TRANSPORTS",
            probe="plugins",
        ),
    ),
    _code(
        "core.kind",
        "the memory is declared of one kind and the runtime says another",
        Cause("the placement of the description is wrong", "correct the placement"),
        Cause("the address belongs to another tensor", "take the tensor's own data pointer"),
    ),
    # ---- the command line
    _code("demo", "the demo could not be done"),
    _code(
        "demo.child",
        "a process of the demo failed, died or hung; the message has its last lines",
        Cause("memory ran out", "give fewer --tokens", "memory.free"),
    ),
    _code(
        "demo.mismatch",
        "bytes arrived other than they were sent",
        Cause("--corrupt asked for it", "leave it out"),
        Cause("memory or a transport has a fault", "run `cachefw doctor`, and report it with its bundle"),
    ),
    _code(
        "plan.description",
        "the file given to `cachefw plan` cannot be read, or does not describe a registration",
        Cause("a comma, bracket or indentation is wrong; line and column are in the message", "correct it there"),
        Cause(
            "a name is misspelt or a value of the wrong sort; all of them are in the message", "see docs/planning.md"
        ),
        Cause(
            "it is YAML, and PyYAML is not installed", "pip install 'cachefw[yaml]', or write it as JSON", "packages"
        ),
    ),
    _code(
        "authentication.missing",
        "one end has a secret and the other has none",
        Cause(
            "the variable, or the argument, is set at one end only",
            "give both the same: Node(secret=...), or CACHEFW_SECRET_FILE",
            "settings",
        ),
    ),
    _code(
        "authentication.open",
        "the peer is on another host, and nothing proves who the two are",
        Cause(
            "neither a secret nor TLS was given, which links beyond this host demand",
            "give both a secret or tls=, or say insecure=True on a network that you trust",
            "settings",
        ),
    ),
    _code(
        "authentication.mismatch",
        "what the peer sent does not fit the shared secret",
        Cause(
            "the two files hold different secrets, or one was changed while the other end ran",
            "give both the same file, and start both again",
            "settings",
        ),
        Cause(
            "somebody on the way changes what is sent, or answers in the peer's place",
            "look who listens at that address",
        ),
    ),
    _code(
        "authentication.tls",
        "no TLS could be agreed on with the peer",
        Cause("one end has tls= and the other has not", "give it to both", "settings"),
        Cause(
            "the certificate was not signed by the CA that the other end trusts, or has expired",
            "compare CACHEFW_TLS_CA of both; see the certificate's dates",
            "settings",
        ),
    ),
    _code(
        "busy.unsettled",
        "the memory may still be touched by a transfer whose deadline has passed",
        Cause(
            "the peer hangs, and its bytes may come later",
            "wait until that transfer has settled, or until the link has ended",
        ),
    ),
    _code(
        "transport.disabled",
        "a setting leaves the plugin out",
        Cause(
            "CACHEFW_PLUGINS names others, or CACHEFW_DISABLE_PLUGINS names it",
            "unset them; they are for finding out which plugin is at fault",
            "settings",
        ),
    ),
    _code(
        "task.layer",
        "the layer synchronizer said that a layer failed, which ended the transfer",
        Cause("the computation of that layer failed or was given up", "look at what computes it; send the cache again"),
    ),
    _code(
        "task.synchronizer",
        "the layer synchronizer raised, which ended the transfer",
        Cause("its exception is the `__cause__` of the error", "correct the synchronizer"),
    ),
    _code(
        "task.closed",
        "the manager was closed before the last layer was sent",
        Cause("a node or manager was closed while a task ran", "call `synchronize()` of the task first"),
    ),
    _code(
        "staging.unsupported",
        "the transport does not take this memory, and it cannot be copied to memory that it takes",
        Cause(
            "no open transport copies memory of that kind",
            "open one that does beside it (`cachefw transports`: copy)",
            "plugins",
        ),
    ),
    _code(
        "staging.broken",
        "copying through the buffer of a link stopped because of a fault, not of a refusal",
        Cause(
            "a fault of cachefw or of a transport; the error's cause has it", "report it with `cachefw doctor --bundle`"
        ),
    ),
    _code(
        "task.broken",
        "sending a layer stopped because of a fault, not of a refusal",
        Cause(
            "a fault of cachefw or of a transport; the error's cause has it", "report it with `cachefw doctor --bundle`"
        ),
    ),
)
