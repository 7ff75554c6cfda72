"""What the driver, agents and workers must agree on: round ids, wire format, leases, limits, an agent's bootstrap.

Imports `system`, `text` and `v1`, and no torch. Start with `ids.py` and `link.py`.
"""
