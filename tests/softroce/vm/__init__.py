"""A virtual machine with a soft-RoCE device, for one command."""
