"""The DeltaNet suite on the emulator."""

from tests.suites.delta import *  # noqa: F403
