"""The API server, by the official client: how it is found from a pod, and its errors as sentences."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio import client, config

from edriver.discovery.errors import UnusableSourceError

NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NAMESPACE_VARIABLE: Final = "POD_NAMESPACE"
"""Where a pod finds its namespace; the manifest's variable comes first."""

REQUEST_TIMEOUT: Final = 10.0
"""Seconds that the API server may take for one answer."""

TROUBLE: Final = (client.exceptions.ApiException, aiohttp.ClientError, OSError, TimeoutError)
"""What a call may raise that is the API server's, or the way to it."""


async def connect() -> client.ApiClient:
    """A client of the API server of the pod that this process runs in, or else of the kubeconfig that KUBECONFIG names.

    Raises:
        UnusableSourceError: there is neither.
    """
    made = client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=made)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(client_configuration=made)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise UnusableSourceError(
            f"no API server is known here ({error}): run the driver in a pod, as `edriver kubernetes manifest` has it, "
            "or set KUBECONFIG"
        ) from None
    return client.ApiClient(configuration=made)


async def close(api: client.ApiClient) -> None:
    """Close a client's connections."""
    await api.close()  # type: ignore[no-untyped-call]


def namespace() -> str:
    """The namespace of the pod that this process runs in."""
    if found := os.environ.get(NAMESPACE_VARIABLE):
        return found
    try:
        return NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"


def sentence(error: BaseException, what: str) -> str:
    """What is wrong, and what to do about it.

    Args:
        error: what a call has raised.
        what: what was asked for, as in "list pods".
    """
    if not isinstance(error, client.exceptions.ApiException):
        return f"the API server cannot be reached to {what} ({str(error) or type(error).__name__})"
    message = _message(error)
    if error.status == 403:
        if "exceeded quota" in message:
            return f"the cluster refuses to {what}: the namespace's quota is used up: {message}"
        role = "apply the Role that `edriver kubernetes manifest` prints"
        return f"the driver's service account may not {what}: {role} ({message})"
    return f"the API server refuses to {what}: {error.status} {message}"


def _message(error: client.exceptions.ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return str(error.reason or "no reason given").strip()


async def body_of(response: Any) -> dict[str, Any]:
    """The JSON of an answer that the client has not read.

    Raises:
        ApiException: it is an error.
    """
    text = await response.read()
    if response.status >= 400:
        raise client.exceptions.ApiException(status=response.status, reason=response.reason, body=text.decode())
    found = json.loads(text)
    if not isinstance(found, dict):
        raise client.exceptions.ApiException(status=response.status, reason="the answer is not a JSON object")
    return found
