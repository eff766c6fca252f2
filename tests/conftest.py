"""What holds for every test: no network, and GPU tests only where there is a GPU."""

from __future__ import annotations

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub and datasets are imported, so before any test is
os.environ["HF_DATASETS_OFFLINE"] = "1"
# Kernels run in Triton's interpreter, which is chosen when triton is imported. TRITON_INTERPRET=0 with `-m gpu`
# runs them on the GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no GPU here"))
