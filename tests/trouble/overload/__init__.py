"""Overload and abuse of one run at a time: what a machine or its user may do to it, and what it says of that."""
