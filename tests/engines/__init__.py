"""Runs on engines that own machines, each a real one on this machine: `make engines`."""
