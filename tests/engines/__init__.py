"""Runs under real engines, each a cluster of its own on this machine: `make engines`."""
