"""What other training libraries need to run in edriver's rounds: a module or a folder a library.

Each imports its library and edriver.worker, and no other module of this folder but the library's that it stands on.
"""
