"""What brings events to the core: the inbox of its loop, and what polls discovery and brokers. Agents are in `agents`.

Start with `discovery_feed.py`.
"""
