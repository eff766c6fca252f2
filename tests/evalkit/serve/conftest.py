from __future__ import annotations

import pytest

from tests.engine.tiny import Tiny, build


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return build(tmp_path_factory.mktemp("tiny"))
