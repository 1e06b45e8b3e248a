"""Attention, DeltaNet and whole models on the card."""

import pytest

from tests.suites.attention import *  # noqa: F403
from tests.suites.delta import *  # noqa: F403
from tests.suites.drafts import *  # noqa: F403
from tests.suites.experts import *  # noqa: F403
from tests.suites.hidden import *  # noqa: F403
from tests.suites.program import *  # noqa: F403
from tests.suites.restart import *  # noqa: F403
from tests.suites.sampling import *  # noqa: F403

pytestmark = pytest.mark.cuda
