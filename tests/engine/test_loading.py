"""Settings that a checkpoint, a device or the memory does not allow."""

from __future__ import annotations

import pytest

from engine.errors import EngineError
from tests.engine.tiny import Tiny


def test_settings_that_do_not_fit_the_checkpoint(tiny: Tiny) -> None:
    with pytest.raises(EngineError, match="max_model_len is 999, the checkpoints allow 128"):
        tiny.llm(max_model_len=999)
    with pytest.raises(EngineError, match="raise memory_limit_mb"):
        tiny.llm(memory_limit_mb=0)
    for name in ("max_model_len", "num_pages"):
        with pytest.raises(EngineError, match=rf"{name} is -4; fix: give 0"):
            tiny.llm(None, **{name: -4})
    with pytest.raises(EngineError, match="device is tpu; fix: use auto, cpu or cuda"):
        tiny.llm(device="tpu")
