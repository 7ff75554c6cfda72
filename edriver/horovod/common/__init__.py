"""`horovod.common`: see `edriver.horovod.torch`."""
