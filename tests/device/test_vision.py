"""The vision suite on a card."""

import pytest

from tests.suites.vision import *  # noqa: F403

pytestmark = pytest.mark.cuda
