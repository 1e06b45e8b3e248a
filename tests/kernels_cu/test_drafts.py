"""The suite of drafts on the emulator."""

from tests.suites.drafts import *  # noqa: F403
