"""The suites on the card; that of vision is beside them, in test_vision.py.

    python -m pytest tests/device -m cuda

runs all there is for a card, as ``scripts/device_run.sh`` does.
"""

import pytest

from tests.suites.attention import *  # noqa: F403
from tests.suites.delta import *  # noqa: F403
from tests.suites.drafts import *  # noqa: F403
from tests.suites.experts import *  # noqa: F403
from tests.suites.hidden import *  # noqa: F403
from tests.suites.lags import *  # noqa: F403
from tests.suites.products import *  # noqa: F403
from tests.suites.program import *  # noqa: F403
from tests.suites.restart import *  # noqa: F403
from tests.suites.sampling import *  # noqa: F403
from tests.suites.wanted import *  # noqa: F403

pytestmark = pytest.mark.cuda
