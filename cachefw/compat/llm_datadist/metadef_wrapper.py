"""What LLM-DataDist's native module of this name offers of data types: their numbers."""

from __future__ import annotations

from cachefw.compat.llm_datadist.data_type import DataType

globals().update({name: member.value for name, member in DataType.__members__.items()})
