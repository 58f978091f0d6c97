"""What the demo's processes tell each other: one JSON object a line."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = ["Card", "Failure", "Progress", "Report", "Result", "Step", "Task", "decode", "encode"]


class Task(msgspec.Struct, frozen=True):
    """What a child is to do; its first argument."""

    model: str
    tokens: int
    seed: int
    transport: str
    path: str | None
    timeout: float
    corrupt: bool = False
    prefill_settings: dict[str, Any] = {}
    decode_settings: dict[str, Any] = {}


class Step(msgspec.Struct, frozen=True, tag="step"):
    """The child begins with something."""

    name: str


class Card(msgspec.Struct, frozen=True, tag="card"):
    """The prefill side listens; its node's card in hexadecimal digits, and its transport's settings."""

    card: str
    settings: dict[str, Any]


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """So many bytes of a pull (``"cold"`` or ``"warm"``) have arrived."""

    pull: str
    done: int


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The child gives up because of a `CacheError`."""

    code: str
    message: str


class Result(msgspec.Struct, frozen=True, tag="result"):
    """What the decode side measured and found wrong.

    Attributes:
        path: How the bytes went, in the transport's own word.
        remark: What every report has to say beside the transport's name, or "".
        settings: The transport's settings on this side.
        cold_seconds: Of the first pulls; host memory was never touched before.
        warm_seconds: Of the same pulls once more.
        memcpy_seconds: Of the best of three plain copies of as many bytes.
        checked: Blocks compared, over all tensors and both pulls.
        spared: Blocks that were not asked for and had to stay as they were, counted in the same way.
        wrong: How many of either were not as they had to be.
        examples: The first of those in words.
    """

    path: str
    remark: str
    settings: dict[str, Any]
    cold_seconds: float
    warm_seconds: float
    memcpy_seconds: float
    checked: int
    spared: int
    wrong: int
    examples: list[str]


Report: TypeAlias = Step | Card | Progress | Failure | Result


def encode(message: Report | Task) -> bytes:
    """A message as JSON, without a line end."""
    return msgspec.json.encode(message)


def decode(line: bytes) -> Report:
    """The report in a line.

    Raises:
        msgspec.MsgspecError: It is none.
    """
    report: Report = msgspec.json.decode(line, type=Report)
    return report
