"""The interface of LLM-DataDist's second generation."""
