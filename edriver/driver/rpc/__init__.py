"""The driver's gRPC services for agents, status and control, and the TCP endpoint with its TLS credentials.

Start with `agent_service.py`, whose parts are in `agents`. It turns streams into events and actions into messages, and
decides nothing.
"""
