"""Gloo, past torch's promises: its devices and groups, who calls them, and how a round's connections are cut.

May import what edriver.worker.backend may. Start at `sever.py`: what frees a collective that hangs.
"""
