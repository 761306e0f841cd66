"""Compress, fine-tune, save, load elsewhere: `python examples/finetune.py`."""

import tempfile

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import hope


def network() -> torch.nn.Module:
    """A small convolutional network for digits."""
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU()),
        *(torch.nn.Conv2d(16, 32, 3, padding=1, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU()),
        *(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(128, 10)),
    )


def train(model: torch.nn.Module, loader: DataLoader, epochs: int, rate: float) -> None:  # type: ignore[type-arg]
    """An ordinary training loop; compressed networks need no other."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()


def main() -> None:
    """Train, compress to a quarter, fine-tune, save; then load as another program would."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    test, told = images[1400:], labels[1400:]
    loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=64, shuffle=True)
    model = network()
    train(model, loader, epochs=5, rate=3e-3)

    encoding = hope.encode(model, test[:1], params=0.25)
    small = encoding.model
    print(f"before {(model(test).argmax(1) == told).float().mean():.3f}")
    print(f"a quarter {(small(test).argmax(1) == told).float().mean():.3f}")
    train(small, loader, epochs=2, rate=1e-3)
    print(f"fine-tuned {(small(test).argmax(1) == told).float().mean():.3f}")

    with tempfile.TemporaryDirectory() as place:
        hope.save_finetuned(place, encoding, small)  # how small it is, and what it has learned since
        again = hope.load(place, network())  # in another program: the class is enough
        assert torch.equal(again.eval()(test), small(test))
    print("loaded again: the same answers")


if __name__ == "__main__":
    main()
