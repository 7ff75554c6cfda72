"""Random trouble over several hosts, with real processes on real (if virtual) links: see __main__.py."""
