"""Command lines that continue with a run whose driver is gone: typed, given again under a name, or standing by.

It may import the driver, like the rest of the command line. Start with `resume.py`.
"""
