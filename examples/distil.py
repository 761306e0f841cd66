"""Compress, then train the small network on the original's outputs: `python examples/distil.py`."""

import copy

import torch
from sklearn.datasets import load_digits
from torch.nn import functional

import hope


def distil(teacher: torch.nn.Module, student: torch.nn.Module, inputs: torch.Tensor, steps: int) -> None:
    """Train a network to give the outputs of another one (Hinton, Vinyals and Dean, 2015)."""
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)  # a new optimizer: the parameters are new
    student.train()
    for _ in range(steps):
        some = inputs[torch.randint(len(inputs), (64,))]
        with torch.no_grad():
            wanted = functional.log_softmax(teacher(some) / 2, dim=1)
        found = functional.log_softmax(student(some) / 2, dim=1)
        loss = functional.kl_div(found, wanted, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    student.eval()


def main() -> None:
    """Train, compress to a tenth, distil from unlabelled images."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    test, expected = images[1400:], labels[1400:]
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU()),
        *(torch.nn.Conv2d(16, 32, 3, padding=1, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU()),
        *(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(128, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        some = torch.randint(1400, (64,))
        optimizer.zero_grad()
        functional.cross_entropy(model(images[some]), labels[some]).backward()
        optimizer.step()
    model.eval()

    def accuracy(net: torch.nn.Module) -> float:
        return float((net(test).argmax(1) == expected).float().mean())

    small = hope.encode(model, test[:1], params=0.1).model
    student = copy.deepcopy(small)
    distil(model, student, images[:1400], steps=150)  # no labels
    print(f"original {accuracy(model):.3f}")
    print(f"a tenth {accuracy(small):.3f}")
    print(f"distilled {accuracy(student):.3f}")


if __name__ == "__main__":
    main()
