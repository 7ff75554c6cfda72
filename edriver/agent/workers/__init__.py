"""The agent's child processes: started, reaped, captured, and each one's stream of notices and reports.

Start with `processes.py`.
"""
