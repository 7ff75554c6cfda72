"""What everything that listens at a TCP port has in common: what strangers find there, and what they cannot take.

Start with `callers.py`; `health_port.py` is what probes ask.
"""
