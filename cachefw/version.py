"""The version, which all distributions share."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
