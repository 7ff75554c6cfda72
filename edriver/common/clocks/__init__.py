"""The clock by which a run writes its times. Start with run_clock.py. Imports nothing of edriver."""
