"""The command line: its arguments, how errors end it, and `--explain`.

The one package that may import `edriver.driver`. Start with `main.py`.
"""
