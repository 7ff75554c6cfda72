"""The engines that own people's clusters, a package each: how edriver finds, starts and gives back hosts there.
What they share is `pause.py`.

An engine provides a source of hosts, a launcher and what asks it for more hosts, as entry points (pyproject.toml), and
is imported once its name is given. It may import `edriver.discovery`, `edriver.driver.launch.launcher`,
`edriver.common`, `edriver.system` and `edriver.text`: nothing else of the driver, and no other engine. What it needs of
other packages is an extra of the same name. Start at the engine's `__init__.py`.
"""
