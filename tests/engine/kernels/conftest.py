"""Every kernel test runs twice: on CPU tensors in Triton's interpreter and, where there is one, on a GPU."""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cpu" and not INTERPRETED:
        pytest.skip("TRITON_INTERPRET is not 1, so kernels cannot run on the CPU")
    if request.param == "cuda" and INTERPRETED:
        pytest.skip("set TRITON_INTERPRET=0 to run kernels on the GPU")
    return torch.device(request.param)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(2747)
