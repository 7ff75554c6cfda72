"""Lightning in elastic mode: a Trainer whose `fit` continues in the same process when workers come and go.

    trainer = ElasticTrainer(max_epochs=3)
    state = trainer.elastic_state(model, sampler)

    @edriver.run
    def train(state):
        trainer.fit(model, DataLoader(dataset, batch_size=8, sampler=sampler))

    train(state)

Start with `trainer.py`. Lightning's loops and results have no public interface; what is used of them was read in 2.6.6.
"""

from edriver.integrations.lightning.strategy import ElasticStrategy
from edriver.integrations.lightning.trainer import ElasticTrainer

__all__ = ["ElasticStrategy", "ElasticTrainer"]
