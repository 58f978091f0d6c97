"""One process reads a buffer of another by `hixl`: the flow of the vendor's sample, written anew from its description.

Nothing in it knows cachefw: run it under ``python -m cachefw.compat run --npu``.
"""

from __future__ import annotations

import argparse
import json
import socket

import torch
from hixl import (
    OPTION_AUTO_CONNECT,
    OPTION_GLOBAL_RESOURCE_CONFIG,
    READ,
    SUCCESS,
    Hixl,
    MemDesc,
    MemType,
    TransferOpDesc,
)

BLOCKS, BLOCK = 512, 16 * 1024
FILL = 0xAA


def check(status: int, what: str) -> None:
    if status != SUCCESS:
        raise RuntimeError(f"{what} answered {status}")


def meeting_point(engine: str) -> tuple[str, int]:
    host, port = engine.split(":")
    return host, int(port) + 1000


def serve(engine: Hixl, buffer: torch.Tensor, local: str) -> None:
    with socket.create_server(meeting_point(local)) as door:
        door.settimeout(60)
        guest, _ = door.accept()
        with guest:
            guest.settimeout(60)
            guest.sendall(buffer.data_ptr().to_bytes(8, "big"))
            guest.recv(1)


def fetch(engine: Hixl, buffer: torch.Tensor, remote: str) -> None:
    with socket.create_connection(meeting_point(remote), timeout=60) as meeting:
        there = int.from_bytes(meeting.recv(8, socket.MSG_WAITALL), "big")
        check(engine.connect(remote), "connect")
        here = buffer.data_ptr()
        pieces = [TransferOpDesc(here + i * BLOCK, there + i * BLOCK, BLOCK) for i in range(BLOCKS)]
        check(engine.transfer_sync(remote, READ, pieces, timeout_in_millis=30_000), "transfer_sync")
        if not bool((buffer.cpu() == FILL).all()):
            raise RuntimeError("bytes differ")
        check(engine.disconnect(remote), "disconnect")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=("client", "server"), required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--local-engine", default=None)
    parser.add_argument("--remote-engine", default="127.0.0.1:16001")
    parser.add_argument("--protocol", default="roce:device")
    args = parser.parse_args()
    local = args.local_engine or ("127.0.0.1:16000" if args.role == "client" else "127.0.0.1:16001")

    torch.npu.set_device(args.device)
    engine = Hixl()
    resources = json.dumps({"comm_resource_config.protocol_desc": [args.protocol]})
    check(engine.initialize(local, {OPTION_AUTO_CONNECT: "1", OPTION_GLOBAL_RESOURCE_CONFIG: resources}), "initialize")
    fill = FILL if args.role == "server" else 0
    buffer = torch.full((BLOCKS * BLOCK,), fill, dtype=torch.uint8, device="npu")
    status, handle = engine.register_mem(MemDesc(buffer.data_ptr(), BLOCKS * BLOCK), MemType.MEM_DEVICE)
    check(status, "register_mem")
    if args.role == "server":
        serve(engine, buffer, local)
    else:
        fetch(engine, buffer, args.remote_engine)
    check(engine.deregister_mem(handle), "deregister_mem")
    engine.finalize()
    print(f"{args.role} done on {buffer.device}")


if __name__ == "__main__":
    main()
