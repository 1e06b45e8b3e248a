"""The suite of rows that are wanted on the emulator."""

from tests.suites.wanted import *  # noqa: F403
