"""Gloo devices that read nothing from a connection until a member of the round has named it.

Checked with torch 2.11 to 2.15.

A Gloo device hands a connection to whichever of its pairs the first 8 bytes name (gloo/transport/tcp/listener.cc), and
the numbers of pairs are small: another process of the machine, or of the network, can be faster than the member that is
meant. Here the kernel holds back all data that the device's connections bring (edriver.system.sockets), until a member
has reported from where it has connected.

Interfaces: ProcessGroupGloo.create_device, create_default_device and _Options (_devices, _timeout), by which a group
takes devices that were made before it. If they change, making a device raises AttributeError, and so does the round's
group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from edriver.system.sockets import duplicate, hear, hold_back
from edriver.worker.backend.gloo.listener_filter import await_queue
from edriver.worker.backend.gloo.sever import Descriptor, GlooDevice, gloo_devices
from edriver.worker.backend.torch_groups import default_timeout

ATTEMPTS = 100
"""Devices that are made before one is used to which another process had connected before it was guarded."""

ACCEPT_TIME = 0.002
"""Seconds for which Gloo's thread may have a connection that it does not watch yet."""

Address = tuple[str, int]
"""An IP address and a port, as socket.getsockname has them."""


class GlooConnection(NamedTuple):
    """One end of a connection of this process.

    Attributes:
        descriptor: the descriptor of its socket.
        near: the address of this end.
        far: the address of the other end.
    """

    descriptor: Descriptor
    near: Address
    far: Address


class GuardedDevice(NamedTuple):
    """A device whose connections are admitted one by one.

    Attributes:
        device: what a group takes.
        listener: its listening socket's inode.
        address: where it listens.
    """

    device: Any
    listener: int
    address: Address


def make_devices() -> list[GuardedDevice]:
    """Make the devices that torch would make for a group of this process, guarded.

    Raises:
        RuntimeError: the devices cannot be found.
    """
    names = os.environ.get("GLOO_SOCKET_IFNAME")
    return [_make(name) for name in names.split(",")] if names else [_make(None)]


def options(devices: Collection[GuardedDevice], timeout: timedelta | None) -> Any:
    """What ProcessGroupGloo's constructor takes in place of a timeout, to use these devices."""
    made = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    made._devices = [device.device for device in devices]
    made._timeout = default_timeout() if timeout is None else timeout
    return made


def callees(device: GlooDevice, address: Address) -> Iterator[GlooConnection]:
    """The open connections that this end has made."""
    return (found for found in _standing(device) if found.near != address)


def callers(device: GlooDevice, address: Address) -> Iterator[GlooConnection]:
    """The connections that others have made to this device."""
    return (found for found in _standing(device) if found.near == address)


def listen_to(connection: GlooConnection) -> None:
    """Read what this connection brings, from its first byte on."""
    duplicated = duplicate(connection.descriptor.fd, connection.descriptor.inode)
    if duplicated is not None:
        with duplicated:
            hear(duplicated)


def _make(interface: str | None) -> GuardedDevice:
    made = _make_once(interface)
    for _ in range(ATTEMPTS - 1):
        if not gloo_devices()[made.listener].connections:
            break
        made = _make_once(interface)
    return made


def _make_once(interface: str | None) -> GuardedDevice:
    before = gloo_devices().keys()
    gloo = dist.ProcessGroupGloo
    device = gloo.create_default_device() if interface is None else gloo.create_device(interface=interface)
    found = [one for inode, one in gloo_devices().items() if inode not in before]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} Gloo devices were found where one was made")
    listener = duplicate(found[0].listener.fd, found[0].listener.inode)
    if listener is None:
        raise RuntimeError("a Gloo device's listening socket was closed as soon as it was made")
    with listener:
        hold_back(listener)
        # A connection that was complete before that is not held back. It is seen once Gloo has accepted it.
        if await_queue(listener):
            time.sleep(ACCEPT_TIME)
        return GuardedDevice(device, found[0].listener.inode, _address(listener.getsockname()))


def _standing(device: GlooDevice) -> Iterator[GlooConnection]:
    for descriptor in device.connections:
        duplicated = duplicate(descriptor.fd, descriptor.inode)
        if duplicated is None:
            continue
        with duplicated:
            try:
                ends = _address(duplicated.getsockname()), _address(duplicated.getpeername())
            except OSError:
                continue  # not connected yet, or no longer
        yield GlooConnection(descriptor, *ends)


def _address(name: tuple[Any, ...]) -> Address:
    return name[0], name[1]
