"""Calls to an etcd cluster: of several members, to one that answers.

The stubs are those of aetcd, a kept library. Its own client opens channels without TLS only, and the journal holds
keys, so the channels are ours. (etcd3, the other library, cannot be imported with protobuf 4 or later:
https://github.com/kragniz/python-etcd3/issues/1957.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import grpc
import tenacity

from edriver.common.join_config import at_port

CALL_TIMEOUT: Final = 1.0
"""Seconds that one member may take to answer; then the next one is asked."""

DEFAULT_PORT: Final = 2379

TLS_VARIABLES: Final = ("ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY")
"""Name the authority's certificate, that of who calls, and its key, as for etcdctl."""

_CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_ELSEWHERE: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)
"""Status codes after which another member may answer: this one is down, cut off, or without a leader."""

_TIMED_OUT: Final = "context deadline exceeded"
"""What a member says, with code UNKNOWN, that waited for others in vain: before 3.5, etcd passes on Go's error."""

Call: TypeAlias = Callable[[Any, grpc.Channel, float], Any]
"""Makes one call, given the module of the stubs, a channel, and the seconds that it may take."""


class EtcdError(Exception):
    """etcd refuses a call. The message says why."""


class EtcdUnreachableError(EtcdError):
    """No member answers, or those that do have no leader. What was to be written may have been, or may yet be."""


@dataclass(frozen=True, slots=True, repr=False)
class EtcdAddress:
    """Where a cluster is.

    Attributes:
        members: HOST:PORT of each.
        secure: whether they have TLS.
        authority: the certificate (PEM) that theirs are signed by; empty: one that this machine trusts.
        certificate: shows them who calls (PEM), with
        key: its private key (PEM); both empty: nothing does.
    """

    members: tuple[str, ...]
    secure: bool = False
    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str]) -> EtcdAddress:
        """Parse a comma-separated list of URLs; the environment names TLS files as for etcdctl.

        Args:
            text: the list, such as `https://etcd1:2379,https://etcd2:2379`.
            environ: the environment; may have ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY.

        Raises:
            ValueError: it is not such a list, or a file cannot be read.
        """
        urls = [urlsplit(url.strip()) for url in text.split(",")]
        schemes = {url.scheme for url in urls}
        if len(schemes) != 1 or not schemes <= {"http", "https"} or not all(url.hostname for url in urls):
            raise ValueError(f"{text!r} are not URLs of etcd: give them as https://HOST:PORT,https://HOST:PORT")
        members = tuple(at_port(url.hostname or "", url.port or DEFAULT_PORT) for url in urls)
        if schemes == {"http"}:
            return cls(members)
        authority, certificate, key = (_read(name, environ.get(name, "")) for name in TLS_VARIABLES)
        if bool(certificate) != bool(key):
            raise ValueError("ETCDCTL_CERT and ETCDCTL_KEY go together: set both, or none")
        return cls(members, True, authority, certificate, key)

    def __str__(self) -> str:
        """The members, for messages."""
        return ", ".join(self.members)


def _read(variable: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise ValueError(f"{variable}={path}: {error.strerror}") from None


class EtcdClient:
    """Calls the members of a cluster one after the other, from any thread.

    Args:
        address: where they are.

    Raises:
        ImportError: aetcd is not installed.
    """

    def __init__(self, address: EtcdAddress) -> None:
        with warnings.catch_warnings():
            # protobuf 6.31 warns of stubs made for the major version before: tests/etcd calls a real etcd through them.
            warnings.filterwarnings("ignore", "Protobuf gencode version", UserWarning)
            from aetcd import rpc

        self.address = address
        self.messages: Any = rpc
        self._channels = [_channel(member, address) for member in address.members]
        self._answers = 0  # which of them did so last

    def call(self, call: Call) -> Any:
        """Make a call; each member is asked once, beginning with the one that answered last.

        Raises:
            EtcdUnreachableError: see there.
            EtcdError: etcd refuses it.
        """
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(EtcdUnreachableError),
            stop=tenacity.stop_after_attempt(len(self._channels)),
            reraise=True,
        )
        return attempts(self._ask, call)

    def _ask(self, call: Call) -> Any:
        asked = self._answers
        try:
            return call(self.messages, self._channels[asked], CALL_TIMEOUT)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code not in _ELSEWHERE and details != _TIMED_OUT:
                raise EtcdError(details) from None
            self._answers = (asked + 1) % len(self._channels)
            hint = f"; if it is up, check {', '.join(TLS_VARIABLES)}" if self.address.secure else ""
            raise EtcdUnreachableError(f"{self.address.members[asked]}: {details}{hint}") from None

    def range(self, start: bytes, end: bytes = b"", limit: int = 0) -> Sequence[Any]:
        """The keys from `start` up to `end`, in their order, with their values; without `end`: that one.

        Raises:
            EtcdError: see `call`.
        """
        request = self.messages.RangeRequest(key=start, range_end=end, limit=limit)
        found = self.call(lambda rpc, channel, timeout: rpc.KVStub(channel).Range(request, timeout=timeout))
        return list(found.kvs)

    def transact(self, condition: Any, operations: Sequence[Any]) -> Any:
        """Have all of this done, or nothing of it if the condition does not hold; returns etcd's answer.

        Raises:
            EtcdError: see `call`.
        """
        request = self.messages.TxnRequest(compare=[condition], success=operations)
        return self.call(lambda rpc, channel, timeout: rpc.KVStub(channel).Txn(request, timeout=timeout))

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            channel.close()


def _channel(member: str, address: EtcdAddress) -> grpc.Channel:
    if not address.secure:
        return grpc.insecure_channel(member, options=_CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        address.authority or None, address.key or None, address.certificate or None
    )
    return grpc.secure_channel(member, credentials, options=_CHANNEL_OPTIONS)
