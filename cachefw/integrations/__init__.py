"""Connectors of serving engines. Each imports its engine, and is imported by it alone."""
