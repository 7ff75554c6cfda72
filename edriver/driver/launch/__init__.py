"""How agents are started: on this machine, over ssh, by letting them in, or by what another package brings.

Start with `launcher.py`, the seam; `agents.py` keeps track of all agents. `broker.py` is the seam for asking an engine
for hosts.
"""
