"""What the command line says, checked once, before anything is started: from flags to `RunOptions`.

Start with `options.py`, which puts together what `engine_flags.py`, `output_options.py` and `training_script.py` find.
"""
