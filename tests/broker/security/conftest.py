"""Fixtures of the tests of TLS and logins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.secured_broker import SecuredBroker, secured_broker


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker with a listener of each kind."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker
