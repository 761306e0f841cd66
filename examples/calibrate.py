"""A network without batch norm: `python examples/calibrate.py`.

Nothing in such a checkpoint says what its signals look like, so a few inputs are shown to it. Labels are not
used: a loader of (image, label) goes through a generator that leaves them out.
"""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import hope


def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Top-1."""
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    """Train a small network, compress it to a quarter with 256 unlabelled images."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=64, shuffle=True)

    model = torch.nn.Sequential(
        *(torch.nn.Linear(64, 128), torch.nn.ReLU()),
        *(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(8):
        for some, told in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(some), told).backward()
            optimizer.step()
    model.eval()

    few = DataLoader(TensorDataset(images[:256], labels[:256]), batch_size=64)
    method = hope.Absorb(calibration=(some for some, _ in few))
    encoding = hope.encode(model, images[:1], params=0.25, method=method)
    print(encoding)
    for name, one in (("before", model), ("a quarter of it", encoding.model)):
        print(f"{name}: {accuracy(one, images[1400:], labels[1400:]):.3f} on digits that it has not seen")


if __name__ == "__main__":
    main()
