"""Fixtures of all tests: every array kind, every dtype."""

from __future__ import annotations

import pytest
from hypothesis import settings

from kinds import DTYPES, KINDS, Kind, need

# The same examples in every run, and no database: what passes here passes elsewhere.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("fixed")


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every array library under test with every dtype that it has."""
    kind: Kind = request.param
    need(kind.library.module)
    return kind


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    """Every dtype of rows."""
    name: str = request.param
    return name
