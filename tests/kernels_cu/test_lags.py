"""The suite of slots that are behind, on the emulator."""

from tests.suites.lags import *  # noqa: F403
