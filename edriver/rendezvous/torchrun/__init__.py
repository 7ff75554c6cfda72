"""What torch loads in each agent of torchrun: a RendezvousBackend and a Store on `edriver rendezvous`.

handler.py is what torch's entry point names; backend.py and store.py implement torch's interfaces over client.py.
"""
