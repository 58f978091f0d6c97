"""Measures cachefw against the limits of the machine it runs on: ``python -m benchmarks --help``.

Part of the checkout only; see ``docs/performance.md``.
"""
