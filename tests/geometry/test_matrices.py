"""The nearest correlation matrix, against eigenvalues that are cut by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hope.geometry.matrices import semidefinite


def test_a_matrix_that_is_none_becomes_a_correlation_matrix() -> None:
    rho = np.array([[1.0, 0.9, -0.5], [0.9, 1.0, 0.8], [-0.5, 0.8, 1.0]])
    values, vectors = np.linalg.eigh(rho)
    assert values[0] < -0.1
    cut = vectors @ np.diag(values.clip(min=0)) @ vectors.T
    want = cut / np.sqrt(np.outer(cut.diagonal(), cut.diagonal()))
    found = semidefinite(torch.from_numpy(rho)).numpy()
    assert found == pytest.approx(want, abs=1e-12)
    assert found.diagonal() == pytest.approx(np.ones(3), abs=1e-12)
    assert np.linalg.eigvalsh(found)[0] > -1e-12


def test_a_correlation_matrix_stays_as_it_is() -> None:
    rho = torch.tensor([[1.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
    assert semidefinite(rho) is rho
