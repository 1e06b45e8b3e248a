"""The sampling suite on the emulator."""

from tests.suites.sampling import *  # noqa: F403
