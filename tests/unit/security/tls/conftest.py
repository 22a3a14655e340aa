"""Stores that keytool made, once for all tests of this folder."""

import pytest
from tests.support.tls_stores import Stores


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))
