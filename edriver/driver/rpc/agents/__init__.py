"""What `agent_service.py` is made of: who the agents of a run are, who is let in, what one may say, and its leases.

Start with `registry.py`: the agents that the run knows, as the session and the service see them.
"""
