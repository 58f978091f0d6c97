"""The logger `LLM_DATADIST`: to stdout, at the level that `ASCEND_GLOBAL_LOG_LEVEL` names."""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["log"]

_LEVELS = {"0": logging.DEBUG, "1": logging.INFO, "2": logging.WARNING, "3": logging.ERROR}


def _make() -> logging.Logger:
    logger = logging.getLogger("LLM_DATADIST")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(name)s %(asctime)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(_LEVELS.get(os.environ.get("ASCEND_GLOBAL_LOG_LEVEL", ""), logging.ERROR))
    return logger


log = _make()
