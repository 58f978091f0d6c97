"""Many threads on one node: registering, moving and giving back at once, and the table is right in the end."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np

import cachefw

THREADS, ROUNDS, SIZE = 8, 60, 4096


def test_t24_threads_register_and_release_while_a_peer_reads(leaves_nothing: Any) -> None:
    # A slot for each thread, and one that all register, each as often as it likes.
    block = np.arange((THREADS + 1) * SIZE, dtype=np.uint32).astype(np.uint8)
    base, shared = block.ctypes.data, cachefw.MemoryRegion(block.ctypes.data + THREADS * SIZE, SIZE)
    failures: list[BaseException] = []
    stop = threading.Event()
    with cachefw.Node(1, "127.0.0.1:0") as one, cachefw.Node(2) as two:
        manager = one.cache_manager
        link = two.link(one.address)

        def work(number: int) -> None:
            chance = random.Random(number)
            try:
                for _ in range(ROUNDS):
                    at, length = chance.randrange(SIZE // 2), chance.randint(64, SIZE // 2)
                    own = cachefw.MemoryRegion(base + number * SIZE + at, length)
                    memory = manager.register_memory(own, remote_accessible=True)
                    common = manager.register_memory(shared, remote_accessible=True)
                    assert memory.region == own
                    assert common.region == shared
                    assert {memory, common} <= set(manager.memories)
                    starts = [each.region.address for each in manager.memories]
                    assert starts == sorted(set(starts))
                    for each in chance.sample([memory, common], 2):
                        manager.unregister_memory(each)
            except BaseException as error:
                failures.append(error)

        def read() -> None:
            target = np.zeros(SIZE, np.uint8)
            memory = two.cache_manager.register_memory(target)
            try:
                while not stop.is_set():
                    for published in link.memories:
                        target[:] = 0
                        try:
                            link.read(target.ctypes.data, published.address, published.length)
                        except (cachefw.RequestError, cachefw.BrokenError, cachefw.ClosedError):
                            # Withdrawn meanwhile; the link is as well as ever.
                            link.sync()
                        else:
                            start = published.address - base
                            assert (target[: published.length] == block[start : start + published.length]).all()
            except BaseException as error:
                failures.append(error)
            finally:
                two.cache_manager.unregister_memory(memory)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        reader = threading.Thread(target=read)
        for thread in (reader, *threads):
            thread.start()
        for thread in threads:
            thread.join(120)
        stop.set()
        reader.join(30)
        assert not any(thread.is_alive() for thread in (reader, *threads))
        assert failures == []
        assert manager.memories == []
        link.sync()
        assert link.memories == []
