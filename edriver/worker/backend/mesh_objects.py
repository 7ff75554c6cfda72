"""The DeviceMesh objects that a process keeps of one mesh: itself, and slices of it. They can be moved to another one.

A model with several dimensions inside a replica refers to its mesh from many places: DTensors, FSDP2's parameters, the
hooks of tensor parallelism, the script's own code. A new round has a new mesh of the same dimensions. So the objects
stay, and take over what the corresponding slices of the new mesh have.

Interfaces, in torch 2.11 to 2.15: DeviceMesh._get_root_mesh, _concatenate; that a DeviceMesh has no other state than
its attributes.
"""

from __future__ import annotations

import gc
import weakref

from torch.distributed.device_mesh import DeviceMesh


class MeshObjects:
    """Those of one mesh.

    Args:
        root: the mesh.
    """

    def __init__(self, root: DeviceMesh) -> None:
        self._root = root
        self._found: dict[int, weakref.ref[DeviceMesh]] = {}
        self._strange = ""
        self.look()

    def look(self) -> None:
        """Find them, among all objects of the process: that takes some ten milliseconds."""
        for mesh in gc.get_objects():
            if type(mesh) is DeviceMesh and mesh is not self._root and mesh._get_root_mesh() is self._root:
                self._found[id(mesh)] = weakref.ref(mesh)
                if not _is_slice(mesh, self._root):
                    self._strange = f"{mesh} is not a slice of the round's mesh"

    def trouble(self) -> str:
        """Why they cannot be moved; empty: they can."""
        return self._strange

    def move(self, root: DeviceMesh) -> None:
        """Have each that is still there take over what its counterpart has.

        Raises:
            ValueError: this process has another place in a replica of the new mesh.
        """
        before, after = _place_in_replica(self._root), _place_in_replica(root)
        if before != after:
            raise ValueError(f"this process is at {before} of its replica, and at {after} in the mesh to bind it to")
        living = [mesh for found in self._found.values() if (mesh := found()) is not None]
        slices = [(mesh, _slice(root, mesh)) for mesh in living]
        for mesh, counterpart in [*slices, (self._root, root)]:
            vars(mesh).clear()
            vars(mesh).update(vars(counterpart))
        self._root = root
        self._found = {id(mesh): weakref.ref(mesh) for mesh in living}


def _is_slice(mesh: DeviceMesh, root: DeviceMesh) -> bool:
    try:
        return set(mesh.mesh_dim_names or ()) <= set(root.mesh_dim_names or ()) and _slice(root, mesh) == mesh
    except (AttributeError, KeyError, RuntimeError):  # what torch raises may change
        return False


def _slice(root: DeviceMesh, like: DeviceMesh) -> DeviceMesh:
    """Of the dimensions that another mesh has, in its order: FSDP2 puts its own first."""
    names, all_names = like.mesh_dim_names or (), root.mesh_dim_names or ()
    if names == all_names:
        return root
    if list(names) == sorted(names, key=all_names.index):
        return root[names]
    return DeviceMesh._concatenate([root[name] for name in names])


def _place_in_replica(mesh: DeviceMesh) -> tuple[tuple[str, int, int], ...]:
    """For each dimension inside a replica: its name, its size, and where in it this process is."""
    place = mesh.get_coordinate()
    assert place is not None, "this process is in it"
    assert mesh.mesh_dim_names is not None, "its dimensions have names"
    return tuple(zip(mesh.mesh_dim_names[1:], mesh.shape[1:], place[1:], strict=True))
