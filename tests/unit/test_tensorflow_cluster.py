"""TF_CONFIG, without processes."""

from __future__ import annotations

import importlib
import json
import socket
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from edriver.model.ids import RoundId
from edriver.model.plan import Assignment
from edriver.model.store_address import StoreAddress
from edriver.worker.restart import tensorflow_cluster
from edriver.worker.restart.tensorflow_cluster import config, member


class FakeStore:
    """A store whose keys are all set before they are waited for."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str, /) -> None:
        self.values[key] = value

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:  # the store's interface
        assert set(keys) <= set(self.values)

    def get(self, key: str, /) -> bytes:
        return self.values[key].encode()


def place(rank: int, size: int) -> Assignment:
    return Assignment(RoundId(1, 1), rank, size, rank, size, 0, 1, StoreAddress("127.0.0.1", 1), (0,), ())


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that can be imported, in TensorFlow's place."""
    (tmp_path / "tensorflow_of_a_test.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tensorflow_cluster, "PACKAGE", "tensorflow_of_a_test")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "tensorflow_of_a_test", raising=False)
    return "tensorflow_of_a_test"


def test_the_form_of_tf_config() -> None:
    assert json.loads(config(["a:1", "b:2"], 1)) == {
        "cluster": {"worker": ["a:1", "b:2"]},
        "task": {"type": "worker", "index": 1},
    }


def test_it_is_set_once_the_package_is_imported_and_the_port_is_kept_until_then(package: str) -> None:
    store, environ = FakeStore(), {"TF_CONFIG": "old"}
    store.set("edriver/tensorflow/1", "127.0.0.1:9")
    with member(place(0, 2), lambda: store, "127.0.0.1", environ):
        assert environ["TF_CONFIG"] == "old"
        own = store.values["edriver/tensorflow/0"]
        address = ("127.0.0.1", int(own.rpartition(":")[2]))
        with socket.socket() as another, pytest.raises(OSError, match="in use"):
            another.bind(address)
        importlib.import_module(package)
        assert json.loads(environ["TF_CONFIG"])["cluster"]["worker"] == [own, "127.0.0.1:9"]
        with socket.socket() as server:
            server.bind(address)


def test_it_is_set_at_once_where_a_standby_has_imported_the_package(package: str) -> None:
    importlib.import_module(package)
    environ: dict[str, str] = {}
    with member(place(0, 1), FakeStore, "::1", environ):
        (own,) = json.loads(environ["TF_CONFIG"])["cluster"]["worker"]
        assert own.startswith("[::1]:")


@pytest.mark.usefixtures("package")
def test_a_script_that_does_not_import_it_waits_for_no_other() -> None:
    environ: dict[str, str] = {}
    with member(place(0, 2), FakeStore, "127.0.0.1", environ):
        importlib.import_module("colorsys")
    assert not environ


def test_nothing_is_published_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow_cluster, "PACKAGE", "tensorflow_that_is_not_there")

    def connect() -> FakeStore:
        raise AssertionError

    with member(place(0, 2), connect, "127.0.0.1", {}):
        pass
