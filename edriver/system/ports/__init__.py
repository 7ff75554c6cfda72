"""What all servers at TCP ports share: limits for callers without a token, the health port, gRPC's own log.

Start with `callers.py`; `health_port.py` is what probes ask.
"""
