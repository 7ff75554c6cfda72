"""The simulation: the real core and the real worker-side logic, with simulated hosts, network and time."""
