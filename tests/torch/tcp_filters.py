"""TCP sockets with filters, and without: some kernels give those with CAP_NET_ADMIN alone."""

from __future__ import annotations

import pytest

from edriver.system import sockets
from tests.needs import FILTERS

NO_OPTION = -1

needs_filters = pytest.mark.needs(FILTERS)

BOTH_WAYS = [pytest.param(True, marks=needs_filters, id="filters"), pytest.param(False, id="no-filters")]
"""For a parameter: with filters, where there are any, and without."""


def take_away() -> None:
    """Have none in this process, for good."""
    setattr(sockets, "_SO_ATTACH_FILTER", NO_OPTION)  # noqa: B010
