"""The speed experiment: what is measured of one layer."""

from __future__ import annotations

from experiments.speed import one_layer


def test_one_layer_is_measured_by_itself() -> None:
    found = one_layer(16, fan=8)
    assert found["neurons"] == 16
    assert 0 < found["geometry seconds"] < found["seconds"]
