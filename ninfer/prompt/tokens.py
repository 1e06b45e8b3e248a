"""The vocabulary of an artifact: text to ids, ids to bytes, and the ids that mean something.

Built from the artifact's resource bytes.  Both sources of added tokens are merged: those of
``tokenizer.json`` and those that only ``tokenizer_config.json`` lists.

The one thing a reader would get wrong: ``encode`` never yields a control token, whatever the text
spells; only ``encode_sealed`` does, and only for seals (see ``seals``).  The tokenizers library is
called through its batch interface alone, because single calls keep the interpreter lock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from tokenizers import Tokenizer

from ninfer.faults import StartupError
from ninfer.prompt.seals import SEAL_RUNS, Seals, number


@attrs.frozen
class Added:
    """One token beyond the byte-level vocabulary.  ``special`` ones never show in answers."""

    id: int
    text: str
    special: bool


@attrs.frozen(eq=False)
class Vocabulary:
    """Everything that turns text into ids and back.

    ``table[id]`` is what a generated token shows: empty for special tokens and for holes.  Ids
    below ``size`` may be sampled.  ``stops`` end an answer.
    """

    table: Sequence[bytes]
    stops: frozenset[int]
    seals: Seals
    added: Mapping[str, Added]
    names: Mapping[str, str]  # bos_token, eos_token, ... to their spellings
    _plain: Tokenizer
    _sealed_ids: tuple[int, ...]

    @classmethod
    def load(cls, tokenizer: bytes, config: bytes = b"{}", generation: bytes = b"{}") -> Vocabulary:
        """Build from tokenizer.json, tokenizer_config.json and generation_config.json."""
        body, settings = _parsed(tokenizer, "tokenizer.json"), _parsed(config, "tokenizer_config.json")
        added = _added_tokens(body, settings)
        names = _named_tokens(settings)
        return cls(
            table=_byte_table(_base_vocabulary(body), added.values()),
            stops=_stops(_parsed(generation, "generation_config.json"), names, added),
            seals=Seals(added),
            added=added,
            names=names,
            plain=_plain_tokenizer(body),
            sealed_ids=tuple(token.id for token in added.values()),
        )

    @property
    def size(self) -> int:
        """How many ids may be sampled: 0 .. size-1."""
        return len(self.table)

    def special(self, spelling: str) -> int:
        """Return the id of a control token; StartupError when the artifact has none of that name."""
        token = self.added.get(spelling)
        if token is None:
            raise StartupError(
                f"the tokenizer has no token {spelling}; use an artifact of the Qwen3.5 family"
            )
        return token.id

    def token_bytes(self, token: int, *, raw: bool = False) -> bytes:
        """Return what one token shows; ``raw`` spells special tokens out as well."""
        if raw and not self.table[token]:
            return next((item.text.encode() for item in self.added.values() if item.id == token), b"")
        return self.table[token]

    def encode(self, text: str) -> list[int]:
        """Tokenise ordinary text; control spellings in it stay text."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise several texts independently, off the interpreter lock and on all cores."""
        encodings = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def sealed_ids(self, run: str) -> list[int]:
        """Return the ids of a run of seals."""
        return [self._sealed_ids[number(seal)] for seal in run]

    def encode_sealed(self, text: str) -> list[int]:
        """Tokenise text whose seals become control tokens."""
        parts = SEAL_RUNS.split(text)  # text, run, text, run, ..., text
        ids: list[int] = []
        for position, plain in enumerate(self.encode_many(parts[::2])):
            ids += plain
            if 2 * position + 1 < len(parts):
                ids += self.sealed_ids(parts[2 * position + 1])
        return ids


def _parsed(resource: bytes, name: str) -> dict[str, Any]:
    try:
        body = json.loads(resource)
    except ValueError as problem:
        raise StartupError(f"{name} of the artifact is not valid JSON: {problem}") from problem
    if not isinstance(body, dict):
        raise StartupError(f"{name} of the artifact is not a JSON object")
    return body


def _added_tokens(body: dict[str, Any], settings: dict[str, Any]) -> dict[str, Added]:
    """Merge both lists of added tokens, in id order, by spelling."""
    by_id: dict[int, Added] = {}
    entries = [(item["id"], item) for item in body.get("added_tokens") or ()]
    entries += [(int(key), item) for key, item in (settings.get("added_tokens_decoder") or {}).items()]
    for token_id, item in entries:
        if item.get("lstrip") or item.get("rstrip") or item.get("single_word"):
            raise StartupError(
                f"added token {item['content']} strips its surroundings, which is not supported"
            )
        token = Added(token_id, item["content"], bool(item.get("special")))
        if by_id.setdefault(token_id, token).text != token.text:
            raise StartupError(f"tokenizer.json and tokenizer_config.json disagree on token {token_id}")
    return {token.text: token for _, token in sorted(by_id.items())}


def _named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Collect ``eos_token`` and its like, which templates may print."""
    found = {}
    for name in (
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "sep_token",
        "cls_token",
        "mask_token",
    ):
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _stops(generation: dict[str, Any], names: dict[str, str], added: dict[str, Added]) -> frozenset[int]:
    """Read the ids that end an answer: generation_config.json first, else the tokenizer's own."""
    listed = generation.get("eos_token_id")
    if isinstance(listed, int):
        return frozenset({listed})
    if listed:
        return frozenset(listed)
    eos = added.get(names.get("eos_token", ""))
    if eos is None:
        raise StartupError(
            "the artifact names no end-of-text token; give generation_config.json an eos_token_id"
        )
    return frozenset({eos.id})


def _base_vocabulary(body: dict[str, Any]) -> dict[str, int]:
    model = body.get("model") or {}
    if model.get("type") != "BPE" or '"ByteLevel"' not in json.dumps(body.get("pre_tokenizer")):
        raise StartupError("tokenizer.json is not a byte-level BPE; use an artifact of the Qwen3.5 family")
    vocabulary: dict[str, int] = model["vocab"]
    return vocabulary


def _plain_tokenizer(body: dict[str, Any]) -> Tokenizer:
    """Build a tokenizer that knows no control token, so that none can be spelled."""
    bare: dict[str, Any] = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps(body | bare))


def _byte_table(base: Mapping[str, int], added: Iterable[Added]) -> tuple[bytes, ...]:
    byte_of = byte_alphabet()
    shown: dict[int, bytes] = {}
    for text, index in base.items():
        try:
            shown[index] = bytes([byte_of[char] for char in text])
        except KeyError:  # a control token that the base vocabulary lists as it is spelled
            shown[index] = text.encode()
    shown |= {token.id: b"" if token.special else token.text.encode() for token in added}
    return tuple(shown.get(index, b"") for index in range(max(shown) + 1))


def byte_alphabet() -> dict[str, int]:
    """Map the printable stand-ins of byte-level BPE to the bytes they stand for.

    Printable Latin-1 stands for itself; the other 68 bytes take U+0100 onwards, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}
