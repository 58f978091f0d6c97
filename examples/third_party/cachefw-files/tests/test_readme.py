"""The store and the engine of README.md work together."""

import re
import textwrap
from pathlib import Path

import numpy as np

from cachefw import BlocksCacheKey, CacheDesc, DataType, Node, Placement

PAGE = Path(__file__).resolve().parents[1] / "README.md"


class Tensor(np.ndarray):
    """An array whose address is asked for as torch does it."""

    def data_ptr(self):
        return self.ctypes.data


def test_an_engine_spills_a_block_and_pulls_it_back(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEFW_FILES_DIRECTORY", str(tmp_path))
    store, engine = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    port = '"127.0.0.1:26009"'
    assert port in store
    assert port in engine
    # Both in one process, the engine while the store is open; and on a port that is free.
    program = store.replace(port, '"127.0.0.1:0"') + "    address = node.address\n"
    program += textwrap.indent(engine.replace(port, "address"), "    ")
    tensors = [np.full((64, 4096), 7, np.uint8).view(Tensor) for _ in range(2)]
    for tensor in tensors:
        tensor[40] = 0
    names = {
        "BlocksCacheKey": BlocksCacheKey,
        "Node": Node,
        "desc": CacheDesc(2, (64, 4096), DataType.DT_UINT8, Placement.HOST),
        "tensors": tensors,
    }
    exec(program, names)
    # The engine wrote one block of the first tensor; of the second the store has nothing but zeros.
    assert [int(tensor[40].max()) for tensor in tensors] == [7, 0]
