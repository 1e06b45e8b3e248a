"""The restart suite on the emulator."""

from tests.suites.restart import *  # noqa: F403
