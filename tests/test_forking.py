"""A process that was forked: a clear error for all it inherited, and nothing of its parent's is touched."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
    import os, sys, threading, numpy as np, cachefw

    one, two = cachefw.Node(1, "127.0.0.1:0"), cachefw.Node(2, "127.0.0.1:0")
    size = 2**20
    source, target = one.cache_manager.allocate(size), two.cache_manager.allocate(size)
    far = one.cache_manager.register_memory(source, remote_accessible=True)
    near = two.cache_manager.register_memory(target)
    link = two.link(one.address)
    prepared = link.prepare(cachefw.Operation.READ, target.address, source.address, size)
    prepared.post()
    pending = two.link(one.address, wait=False)
    pending.result(20)

    def refused(call):
        try:
            call()
        except cachefw.ClosedError as error:
            assert error.code == "closed.forked", error
            assert "was forked from the one that made this" in str(error), error
        else:
            raise AssertionError("it was let through")

    def fork(child):
        sys.stdout.flush()
        number = os.fork()
        if not number:
            child()
            # Through the interpreter's own end, where finalizers and exit handlers run.
            sys.exit(0)
        end = threading.Timer(30, os.kill, (number, 9))
        end.start()
        _, status = os.waitpid(number, 0)
        end.cancel()
        assert status == 0, status
    """
EPILOGUE = """
    # Nothing has happened to the parent.
    np.asarray(source)[:] = 9
    prepared.post()
    link.sync()
    assert (np.asarray(target) == 9).all()
    assert two.link(one.address) is link
    link.notify(b"still here")
    link.sync()
    assert [note.payload for note in one.notifications()] == [b"still here"]
    two.cache_manager.unregister_memory(near)
    one.cache_manager.unregister_memory(far)
    assert one.cache_manager.memories == two.cache_manager.memories == []
    one.close()
    two.close()
    print("done")
    """
CHILDREN = {
    "uses everything": """
    def child():
        for call in (
            prepared.post,
            link.sync,
            lambda: link.read(target.address, source.address, size),
            lambda: link.notify(b"x"),
            lambda: two.link(one.address),
            lambda: two.relink(link),
            lambda: two.unlink(link),
            pending.result,
            one.card,
            lambda: two.cache_manager.register_memory(np.zeros(10, np.uint8)),
            lambda: two.cache_manager.unregister_memory(near),
            lambda: two.cache_manager.allocate(10),
            two.cache_manager.suspend,
        ):
            refused(call)
        assert two.links == [] and two.closed
    """,
    "exits at once": """
    def child():
        pass
    """,
    "closes everything": """
    def child():
        for each in (target, source, one, two, one.cache_manager, two.cache_manager):
            each.close()
    """,
    "drops everything": """
    def child():
        import gc
        for name in ("one", "two", "link", "prepared", "source", "target", "far", "near", "pending"):
            del globals()[name]
        gc.collect()
    """,
    "makes a node of its own": """
    def child():
        with cachefw.Node(3, "127.0.0.1:0") as three, cachefw.Node(4) as four:
            mine = three.cache_manager.allocate(size)
            three.cache_manager.register_memory(mine, remote_accessible=True)
            array = np.zeros(size, np.uint8)
            four.cache_manager.register_memory(array)
            np.asarray(mine)[:] = 5
            four.link(three.address).read(array.ctypes.data, mine.address, size)
            assert (array == 5).all()
        refused(prepared.post)
    """,
    "has a locked parent": """
    def child():
        refused(prepared.post)
        assert two.cache_manager.memories
        assert link.memories == []
        repr(two), repr(link)

    # At the moment of the fork another thread holds what can be held.
    held, let_go = threading.Event(), threading.Event()
    def hold():
        with two.cache_manager.registry.lock, link._table._lock:
            held.set()
            let_go.wait(30)
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20)
    threading.Timer(1.0, let_go.set).start()
    """,
}


@pytest.mark.parametrize("what", CHILDREN)
def test_t24_a_forked_child_gets_an_error_and_harms_nobody(what: str) -> None:
    code = "".join(map(textwrap.dedent, (PRELUDE, CHILDREN[what], "\nfork(child)\n", EPILOGUE)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_t24_a_spawned_child_works(tmp_path: object) -> None:
    code = """
    import multiprocessing, sys, cachefw

    def child(address):
        with cachefw.Node(2) as node:
            assert node.link(address).cluster_id == 1

    if __name__ == "__main__":
        with cachefw.Node(1, "127.0.0.1:0") as one:
            process = multiprocessing.get_context("spawn").Process(target=child, args=(one.address,))
            process.start()
            process.join(60)
            sys.exit(process.exitcode)
    """
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (0, "")
