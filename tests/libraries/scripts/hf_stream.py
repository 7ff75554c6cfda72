"""A Hugging Face dataset in streaming mode, tokenised by a map; rank 1 kills itself once."""

import json
import os
import signal
from pathlib import Path

import datasets
import torch
import torch.distributed as dist

import edriver
from edriver.integrations.datasets import elastic_stream

files = [str(path) for path in sorted(Path("corpus").glob("*.jsonl"))]
dataset = datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir="cache")


def tokenise(rows):
    return {"tokens": [[int(word) for word in text.split()] for text in rows["text"]]}


dataset = dataset.map(tokenise, batched=True, batch_size=8, remove_columns=["text"]).with_format("torch")
stream = elastic_stream(dataset)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
state = edriver.TorchState(model=model, optimizer=optimizer, stream=stream, trained=torch.zeros(8, 100), steps=0)


@edriver.run
def train(state):
    print(f"rank {edriver.rank()} of {edriver.size()} at step {state.steps}", flush=True)
    for batch in stream.loader(batch_size=4, num_workers=2, persistent_workers=True):
        if state.steps == 6 and edriver.rank() == 1 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        counts = torch.zeros_like(state.trained)
        for shard, row in batch["tokens"].tolist():
            counts[shard, row] += 1
        dist.all_reduce(counts)
        optimizer.zero_grad()
        model(torch.ones(1)).sum().backward()
        optimizer.step()
        state.trained += counts
        state.steps += 1
        state.commit()


train(state)
if edriver.rank() == 0:
    Path("trained").write_text(json.dumps(state.trained.int().tolist()))
