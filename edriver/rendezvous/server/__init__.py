"""`edriver rendezvous`: keeps the state of torch's rendezvous and a key-value store for each run, on disk as well.

run_state.py and key_values.py are pure; journal.py is the disk, service.py gRPC, serve.py the process.
"""
