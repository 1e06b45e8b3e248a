"""The suite of experts on the emulator."""

from tests.suites.experts import *  # noqa: F403
