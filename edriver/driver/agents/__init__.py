"""The agents of the run, as the driver sees them: who they are, what they may report, their leases, and AgentService.

It turns their streams into events and actions into messages, and decides nothing. Start with `agent_service.py`;
`registry.py` has the agents that the run knows.
"""
