"""`horovod.torch.elastic.sampler`."""

from edriver.horovod.elastic.sampler import ElasticSampler as ElasticSampler
