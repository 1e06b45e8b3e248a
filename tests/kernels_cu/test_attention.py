"""The attention suite on the emulator."""

from tests.suites.attention import *  # noqa: F403
