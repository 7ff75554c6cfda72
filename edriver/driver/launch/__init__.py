"""How agents are started: on this machine, and on other hosts over ssh.

Start with `launcher.py`.
"""
