"""Where the command begins: an interrupt is not an error, also while the command line's own module is being imported.

It imports nothing itself; what comes before it (the interpreter, this package's name) is out of its hands.
"""

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from edriver.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # before the run took charge of signals
        return EXIT_INTERRUPTED
