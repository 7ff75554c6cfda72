"""`make gpu`: edriver's rounds over NCCL, and its figures, on a machine with one GPU. Start with __main__.py.

All ranks share the GPU (workload.share_the_gpu), so the times say nothing of a cluster: what counts is that each part
ends well, and how edriver, torchrun and torchft compare in one run.
"""
