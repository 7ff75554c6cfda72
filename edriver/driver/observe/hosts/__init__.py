"""What is observed of hosts: how they stand, and what they and their workers use. Start with `host_history.py`."""
