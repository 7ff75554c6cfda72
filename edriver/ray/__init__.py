"""edriver on a Ray cluster, from Python.

    import edriver.ray

    results = edriver.ray.run(train, {"lr": 0.1}, min_workers=2, max_workers=8, resources_per_worker={"GPU": 1})

A run that is started so is one of `edriver --ray`: its driver is a child process of this one, and Ray holds the
workers' resources by actors. Ray itself is imported by neither: it is the driver's client that does.
"""

from edriver.calls.launch import LaunchError as LaunchError
from edriver.ray.running import run as run

__all__ = ["LaunchError", "run"]
