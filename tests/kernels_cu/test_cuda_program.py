"""The program suite on the emulator."""

from tests.suites.program import *  # noqa: F403
