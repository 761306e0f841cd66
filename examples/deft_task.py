"""Teach a network a new task without forgetting, in thirty lines: `python examples/deft_task.py`."""

import torch

import hope


def main() -> None:
    """Split into core and slack, teach the slack, and ask for the old task again."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(  # stands for a network that was trained on ten classes
        *(torch.nn.Conv2d(3, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU()),
        *(torch.nn.Conv2d(16, 32, 3, padding=1, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU()),
        *(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10)),
    ).eval()
    images, labels = torch.randn(64, 3, 16, 16), torch.randint(4, (64,))  # the new task: four classes

    part = hope.deft.partition(model, images[:2], percentile=40, merge="pair")
    tuning = hope.deft.prepare(model, part, head=4, sever="absorb")
    with tuning.source() as source:
        before = source(images)

    optimizer = torch.optim.AdamW(tuning.model.parameters(), lr=1e-2)
    tuning.model.train()
    for step in range(30):
        loss = torch.nn.functional.cross_entropy(tuning.model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"after {step + 1} steps: loss {loss:.3f}")
    tuning.model.eval()

    with tuning.source() as source:  # ten classes again, with the old head
        assert torch.equal(source(images), before), "the old task has changed"
    print(part)
    print("the old task answers as before, to the bit; the new one has a head of its own")


if __name__ == "__main__":
    main()
