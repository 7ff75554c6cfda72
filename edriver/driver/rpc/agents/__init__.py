"""The parts of `agent_service.py`: the registry of agents, their admission, what each may report, and their leases.

Start with `registry.py`: the agents that the run knows, as the session and the service see them.
"""
