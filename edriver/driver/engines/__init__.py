"""Engines that own machines and hand them out: one package for each, with a host source, a launcher and a broker.

An engine is imported only when its name is given (entry points in pyproject.toml), and its third-party package is an
extra. It may import `edriver.discovery`, `edriver.driver.launch.launcher` and what lies below them, and nothing else of
the driver. Start with the package's own docstring.
"""
