"""Tests of the CUDA verbs and program that run on a card and on the emulator alike.

A suite takes the fixture ``bed``: tests/kernels_cu gives it the emulator, tests/device a card.  Cases that
take the emulator too long are skipped there (``bed.real``).
"""
