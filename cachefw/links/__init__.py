"""The control channel between nodes."""
