"""A replica under torchft. Start a lighthouse, and then two of these or more, which may come and go:

torchft_lighthouse --min_replicas 2
TORCHFT_LIGHTHOUSE=http://HOST:29510 torchrun --standalone --nproc-per-node 1 examples/with_torchft.py
"""

import torch
from torchft import Manager, ProcessGroupGloo

from gradwire.integrations.torchft import Optimizer

STEPS = 20
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
inner = torch.optim.SGD(model.parameters(), lr=0.05)


def load(state: dict) -> None:
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


def save() -> dict:
    return {"model": model.state_dict(), "optimizer": inner.state_dict()}


manager = Manager(ProcessGroupGloo(), load, save, min_replica_size=2, use_async_quorum=False)
optimizer = Optimizer(manager, inner, model, "topk:0.01")
while manager.current_step() < STEPS:
    optimizer.zero_grad()  # with the replicas that are there
    torch.nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(10, (32,))).backward()
    optimizer.step()  # if the vote is for it
print(optimizer.handle)
manager.shutdown()
