"""Groups of the command line's flags, judged one by one for `options.py`, which puts them together.

Imports what the options are made of. Start with `engine_flags.py`, or `output_options.py`.
"""
