"""Checks and the logger."""
