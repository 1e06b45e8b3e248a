"""What recomputing, copying and reading cost, in seconds: the scale on which state is chosen and kept.

Owns the formulas; the coefficients are measured and come from ``settings.ContextCosts``.
The one thing a reader would get wrong: prefilling a suffix of S tokens behind B known ones pays a
linear term and an attention term over B*S + S*(S+1)/2 pairs, so late tokens cost more.
"""

from __future__ import annotations

from ninfer.settings import ContextCosts


def prefill_seconds(costs: ContextCosts, known: int, suffix: int) -> float:
    """Return the time to compute ``suffix`` tokens behind ``known`` ones."""
    pairs = known * suffix + suffix * (suffix + 1) // 2
    return costs.prefill_token_seconds * suffix + costs.prefill_pair_seconds * pairs


def disk_seconds(costs: ContextCosts, size: int) -> float:
    """Return the time to read and prove ``size`` bytes of files."""
    return size / costs.disk_bytes_per_second


def transfer_seconds(costs: ContextCosts, size: int) -> float:
    """Return the time to copy ``size`` bytes between host and device."""
    return costs.transfer_seconds + size / costs.transfer_bytes_per_second if size else 0.0
