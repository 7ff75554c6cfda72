"""What probes of the driver and of agents are answered, be they a kubelet's or a load balancer's. Imports `common`.
Start with `health_port.py`.
"""
