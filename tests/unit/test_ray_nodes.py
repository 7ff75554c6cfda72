from __future__ import annotations

import pytest

from edriver.driver.engines.ray.nodes import (
    Node,
    RayArgument,
    actor_options,
    default_resources,
    hosts_of,
    needed_of,
    workers_that_fit,
)
from edriver.model.hosts import Host, HostSet


def node(number: int, available: dict[str, float], **more: object) -> Node:
    fields = {"name": "10.0.0.1", "alive": True, "draining": False, "total": available, "available": available, **more}
    return Node(id=f"{number:056x}"[::-1], **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        pytest.param("", RayArgument("auto", None), id="nothing"),
        pytest.param("head:6379", RayArgument("head:6379", None), id="address"),
        pytest.param("a:1,GPU=1,CPU=0.5", RayArgument("a:1", {"GPU": 1, "CPU": 0.5}), id="all"),
        pytest.param("[fd00::1]:6379", RayArgument("[fd00::1]:6379", None), id="ipv6"),
        pytest.param("accelerator_type:A100=0.001", RayArgument("auto", {"accelerator_type:A100": 0.001}), id="custom"),
    ],
)
def test_an_argument(text: str, argument: RayArgument) -> None:
    assert RayArgument.parse(text) == argument


@pytest.mark.parametrize("text", ["python", "ray://head:10001", "GPU=", "GPU=0", "GPU=-1", "head", "=1", "GPU=nan"])
def test_an_argument_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is neither the address of a Ray cluster"):
        RayArgument.parse(text)


def test_one_cluster_at_a_time() -> None:
    with pytest.raises(ValueError, match="one Ray cluster"):
        RayArgument.parse("a:1,b:2")


def test_raylets_on_one_machine_are_hosts_of_different_names() -> None:
    found = hosts_of([node(1, {"CPU": 2}), node(2, {"CPU": 3})], {"CPU": 1}, {})
    assert [host.slots for host in found] == [2, 3]
    assert len(set(found.names)) == 2
    assert all(name.startswith("10.0.0.1-") for name in found.names)


@pytest.mark.parametrize("name", ["fd00::1", "-odd name-", "", "x" * 300])
def test_any_name_of_a_node_becomes_a_hosts(name: str) -> None:
    from edriver.model.limits import check_host

    check_host(node(1, {}, name=name).host, "host")


def test_dead_and_draining_nodes_are_no_hosts_and_what_the_run_holds_counts() -> None:
    dead, draining = node(1, {"CPU": 1}, alive=False), node(2, {"CPU": 1}, draining=True)
    full, held = node(3, {"CPU": 0}), node(4, {"CPU": 0})
    found = hosts_of([dead, draining, full, held], {"CPU": 1}, {held.host: 2, draining.host: 1})
    assert found == HostSet((Host(held.host, 2),))


def test_a_node_that_ray_drains_by_a_deadline_is_left_by_then() -> None:
    free, held = (node(n, {"CPU": 1}, draining=True, deadline=220.0) for n in (1, 2))
    found = hosts_of([free, held], {"CPU": 1}, {held.host: 2}, now=100.0)
    assert [(host.name, host.slots, host.leaving) for host in found] == [(held.host, 2, 120.0)]
    assert [host.leaving for host in needed_of(found, 2, {held.host: 2})] == [120.0]


@pytest.mark.parametrize(
    ("there", "need", "count"),
    [
        pytest.param({"CPU": 0.3}, {"CPU": 0.1}, 3, id="binary-fractions"),
        pytest.param({"CPU": 8, "GPU": 2}, {"CPU": 1, "GPU": 1}, 2, id="the-scarcest"),
        pytest.param({"CPU": 8}, {"CPU": 1, "GPU": 1}, 0, id="missing"),
        pytest.param({"memory": 1e12}, {"memory": 1}, 4096, id="limit"),
    ],
)
def test_how_many_fit(there: dict[str, float], need: dict[str, float], count: int) -> None:
    assert workers_that_fit(there, need) == count


def test_a_gpu_where_there_are_any() -> None:
    assert default_resources([node(1, {"CPU": 4})]) == {"CPU": 1}
    assert default_resources([node(1, {"CPU": 4}), node(2, {"GPU": 4})]) == {"GPU": 1}
    assert default_resources([node(1, {"CPU": 4}), node(2, {"GPU": 4}, alive=False)]) == {"CPU": 1}


def test_an_actor_holds_the_resources_of_all_its_workers() -> None:
    assert actor_options({"CPU": 2, "GPU": 0.5, "fast": 1}, 4) == {
        "num_cpus": 8,
        "num_gpus": 2,
        "memory": 0,
        "resources": {"fast": 4},
    }


THREE = HostSet((Host("a", 4), Host("b", 4), Host("c", 4)))


@pytest.mark.parametrize(
    ("wanted", "kept", "taken"),
    [
        pytest.param(100, {}, {"a": 4, "b": 4, "c": 4}, id="all"),
        pytest.param(6, {}, {"a": 4, "b": 2}, id="no-more-than-it-can-use"),
        pytest.param(6, {"c": 4}, {"c": 4, "a": 2}, id="those-in-use-first"),
        pytest.param(2, {"b": 4}, {"b": 4}, id="what-is-in-use-stays"),
        pytest.param(8, {"b": 2}, {"b": 2, "a": 4, "c": 2}, id="an-actor-does-not-grow"),
        pytest.param(4, {"gone": 4}, {"a": 4}, id="gone"),
    ],
)
def test_what_a_run_takes(wanted: int, kept: dict[str, int], taken: dict[str, int]) -> None:
    assert needed_of(THREE, wanted, kept) == HostSet(tuple(Host(name, slots) for name, slots in taken.items()))
