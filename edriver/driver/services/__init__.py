"""What is open to others: StatusService and ControlService, the TCP endpoint, and the credentials that the run issues.

Start with `tcp_endpoint.py`. Nothing here decides anything.
"""
