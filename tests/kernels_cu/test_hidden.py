"""The suite of the drafting layer's norms on the emulator."""

from tests.suites.hidden import *  # noqa: F403
