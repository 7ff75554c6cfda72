"""Steps of a fixed number of samples, whatever the number of workers: gradients are accumulated over micro-batches.

`global_batch` is what scripts use; `unfinished` keeps what a worker has accumulated when another one is lost;
`fixed_order` sums gradients in an order that does not depend on the number of workers.
"""
