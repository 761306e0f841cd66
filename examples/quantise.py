"""Round weights to a few bits, and meet a budget in bytes: `python examples/quantise.py`."""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits

import hope


def main() -> None:
    """Train, round all weights to 8 and 4 bits, meet a budget in bytes, save and load."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    test, expected = images[1400:], labels[1400:]

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(
            *(torch.nn.Conv2d(1, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU()),
            *(torch.nn.Conv2d(16, 32, 3, padding=1, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU()),
            *(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(128, 10)),
        )

    def accuracy(model: torch.nn.Module) -> float:
        return float((model(test).argmax(1) == expected).float().mean())

    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        some = torch.randint(1400, (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[some]), labels[some]).backward()
        optimizer.step()
    model.eval()
    print(f"original {accuracy(model):.3f}")
    for bits in (8, 4):
        print(f"{bits} bits {accuracy(hope.encode(model, test[:1], bits=bits).model):.3f}")

    both = hope.encode(model, test[:1], size=0.2)  # neurons and bits, whichever costs less per byte
    print(f"a fifth of the bytes {accuracy(both.model):.3f}")
    with tempfile.TemporaryDirectory() as folder:
        both.save(folder)
        (weights,) = Path(folder).glob("weights-*.safetensors")
        floats = 4 * sum(p.numel() for p in model.parameters())
        print(f"weights: {weights.stat().st_size:,} bytes; in float32: {floats:,}")
        again = hope.load(folder, network())
        assert torch.equal(again.eval()(test), both.model(test))
    print("loaded again: the same outputs")


if __name__ == "__main__":
    main()
