"""Choosing the vocabulary rows of the small drafting head.

Owns the id list: read from a file, or every added token of the tokenizer and then the lowest ids, which
in a byte-pair vocabulary are the most frequent pieces.  Stored in ascending order, so a tie between
two drafted rows goes to the lower id, as it does in the full head.

The one thing a reader would get wrong: the head only drafts; a token outside it is never lost, only
never drafted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.artifact.convert.checkpoint import read_side_file
from ninfer.artifact.errors import ArtifactError
from ninfer.faults import StartupError


def choose_ids(
    count: int, vocab: int, path: Path | None, tokenizer: bytes, tokenizer_config: bytes
) -> npt.NDArray[np.int32]:
    """Pick ``count`` ids below ``vocab``, ascending.  Raises StartupError."""
    if not 0 < count <= vocab:
        raise StartupError(f"--proposal-head {count}: choose 1 to {vocab} rows, the size of the vocabulary")
    if path is not None:
        return _from_file(path, count, vocab)
    added = [token for token in _added(tokenizer, tokenizer_config) if token < vocab]
    chosen = sorted(set(added))[:count]
    taken = set(chosen)
    rest = (token for token in range(vocab) if token not in taken)
    chosen += [token for _, token in zip(range(count - len(chosen)), rest, strict=False)]
    return np.array(sorted(chosen), np.int32)


def _from_file(path: Path, count: int, vocab: int) -> npt.NDArray[np.int32]:
    expected = f"{count} different token ids below {vocab}, separated by white space"
    words = read_side_file(path).split()
    if not all(word.isdigit() and len(word) < 10 for word in words):
        raise ArtifactError(path, "ids", "has something that is not a token id", expected)
    ids = sorted({int(word) for word in words})
    if len(ids) != count or len(words) != count or ids[-1] >= vocab:
        raise ArtifactError(path, "ids", f"has {len(words)} ids, {len(ids)} different", expected)
    return np.array(ids, np.int32)


def _added(tokenizer: bytes, tokenizer_config: bytes) -> Iterator[int]:
    """Ids of added tokens, from both files: each may know some that the other does not."""
    try:
        listed: Any = json.loads(tokenizer).get("added_tokens", [])
        decoder: Any = json.loads(tokenizer_config).get("added_tokens_decoder", {})
        yield from (int(item["id"]) for item in listed)
        yield from (int(key) for key in decoder)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise StartupError(f"the tokenizer's added tokens can't be read: {problem!r}") from problem
