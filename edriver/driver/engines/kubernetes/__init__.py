"""Kubernetes: a driver's pod and agents' pods that dial in.

`command.py` is `edriver kubernetes manifest`, which prints what to apply: `plan.py` has what was asked for, `pods.py`
and `workloads.py` the pods and what starts them, `access.py` what they may do and who reaches them, `manifest.py` puts
them together. All of that is data: dicts that a YAML library writes.

Agents' pods are started by a Job, a StatefulSet or a JobSet, whose size the broker changes. Pods may start before the
driver, so the run's credentials are made in advance (`edriver credentials`) and handed out as Secrets. A watch of the
pods says which of them are about to be taken; the source no longer lists these (`hosts.py`). A drained agent ends with
a separate exit code, because a pod that ends with 0 completes its index of the Job for good. kubelets probe
`grpc.health.v1` at a port without TLS that answers nothing else (edriver/wire/health_port.py).
"""
