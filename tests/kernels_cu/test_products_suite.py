"""The suite of products on the emulator."""

from tests.suites.products import *  # noqa: F403
