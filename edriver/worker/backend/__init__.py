"""Every interface of torch, Gloo or the kernel's sockets that edriver uses and its owner does not document.

Start with `sever.py`.
"""
