"""Gloo, past torch's promises: its devices and groups, who calls them, and how a round's connections are cut.

May import what edriver.worker.backend may. Start at `sever.py`: what frees a collective that hangs.

Why not torch's own reconfigure? From 2.14 on, torch can give a process group other members: `init_process_group(...,
enable_reconfigure=True)`, then `ProcessGroup._reconfigure` over the ranks that are left. Measured beside severing, it
does not replace it, because with Gloo

* `abort()` does nothing. In torch 2.15 ProcessGroupGloo does not override Backend::abort(), whose body is empty: it
  returns at once, and a collective that hangs keeps hanging. A survivor that is not next to the dead member, and so
  sees no connection close, leaves its collective with the group's timeout, and can reconfigure only then;
* members are not authenticated: whoever reaches the store and the listener can take a place;
* a group of several parts (`cpu:gloo,cuda:nccl`) cannot be reconfigured, and groups made with `new_group` are not
  rebuilt;
* a DistributedDataParallel that is kept has a wrong gradient in the first step afterwards.

A torch whose ProcessGroupGloo has an abort() that ends a hanging collective would change the first, and with it what
severing is for: then this is to be measured again.
"""
