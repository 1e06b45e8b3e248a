"""The prompt and output rooms, bound to one artifact.

Implements ``service.FrontEnd``.  The one thing a reader would get wrong: a template file given by the
operator replaces the artifact's, and is examined just as strictly at start-up.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import anyio.from_thread
import anyio.to_thread
import attrs
from anyio import CapacityLimiter

from ninfer.engine.job import ThinkingPlan
from ninfer.faults import StartupError
from ninfer.media.account import Account
from ninfer.media.decode import DecodeLimits
from ninfer.media.fetch import Fetcher, FetchLimits, Policy, trusted
from ninfer.media.resize import read_geometry
from ninfer.media.room import MediaRoom, RoomLimits
from ninfer.output.session import OutputSession
from ninfer.prompt.conversation import Conversation
from ninfer.prompt.media import MediaItem
from ninfer.prompt.prepare import Preparer
from ninfer.prompt.prepared import Prepared
from ninfer.prompt.thinking import check_thinking_capacity, thinking_plan
from ninfer.prompt.tokens import Vocabulary
from ninfer.settings import EngineOptions, GenerationDefaults, MediaOptions
from ninfer.startup import ServeOptions


class Resources(Protocol):
    """What is read of an artifact."""

    def has_resource(self, role: str) -> bool:
        """Whether a frontend file is there."""

    def resource(self, role: str) -> bytes:
        """Read a frontend file."""


@attrs.frozen
class ArtifactFront:
    """Prompts and output sessions of one artifact."""

    preparer: Preparer

    def prepare(self, conversation: Conversation, media: Sequence[MediaItem] = ()) -> Prepared:
        """Render and tokenise.  Raises ``Refused``."""
        return self.preparer.prepare(conversation, media)

    def judge(self, prepared: Prepared, stop: tuple[str, ...]) -> OutputSession:
        """Build the output session of one generation."""
        vocabulary = self.preparer.vocabulary
        return OutputSession(vocabulary.table, vocabulary.stops, thinking=prepared.thinking, stops=stop)

    def thinking_plan(self, budget: int, capacity: int, param: str) -> ThinkingPlan:
        """Build the plan of a capped reasoning channel.  Raises ``Refused`` if it cannot fit."""
        plan = thinking_plan(self.preparer.vocabulary, budget)
        check_thinking_capacity(plan, capacity, param)
        return plan


def components_of(engine: EngineOptions) -> list[str]:
    """Name what of an artifact a process uses; ``Artifact.require`` checks each of them whole."""
    chosen = {engine.spec: engine.spec, "proposal": engine.proposal_head, "vision": engine.vision}
    return ["text", *(name for name, wanted in chosen.items() if name and wanted)]


def build_rooms(artifact: Resources, options: ServeOptions) -> tuple[ArtifactFront, MediaRoom | None]:
    """Build the front end and, with vision, the media room.  Raises ``StartupError``."""
    engine = options.engine
    media = build_media(artifact, options.media) if engine.vision else None
    merge = media.geometry.merge if media else None
    front = build_front(artifact, options.chat_template, engine.max_context, options.defaults, merge)
    return front, media


def build_front(
    artifact: Resources,
    template: Path | None,
    max_context: int,
    defaults: GenerationDefaults,
    merge: int | None = None,
) -> ArtifactFront:
    """Load tokenizer and template; ``merge`` (patches a side of one vision token) admits media.

    Raises ``StartupError`` naming what is missing or broken.
    """
    generation = b"{}"
    if artifact.has_resource("generation_config.json"):
        generation = artifact.resource("generation_config.json")
    vocabulary = Vocabulary.load(
        artifact.resource("tokenizer.json"), artifact.resource("tokenizer_config.json"), generation
    )
    text = _template(artifact, template)
    return ArtifactFront(
        Preparer(vocabulary, text, max_context=max_context, defaults=defaults, merge=merge)
    )


def _template(artifact: Resources, override: Path | None) -> str:
    if override is None:
        return artifact.resource("chat_template.jinja").decode()
    try:
        return override.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise StartupError(f"--chat-template {override}: cannot be read ({problem})") from None


def build_media(artifact: Resources, options: MediaOptions) -> MediaRoom:
    """Build the media room from the artifact's processor configs.  Raises ``StartupError``."""
    geometry = read_geometry(
        artifact.resource("preprocessor_config.json"), artifact.resource("video_preprocessor_config.json")
    )
    workers = CapacityLimiter(options.threads or min(16, os.cpu_count() or 1))
    if options.policy != "off":
        trusted()
    return MediaRoom(
        fetcher=Fetcher(
            cast(Policy, options.policy),
            FetchLimits(options.fetch_seconds, options.stall_seconds, options.redirects),
        ),
        geometry=geometry,
        limits=DecodeLimits(options.pixels, options.video_pixels, options.frames, options.container_pixels),
        account=Account(options.live_bytes, options.cache_bytes),
        run_blocking=partial(anyio.to_thread.run_sync, limiter=workers),
        room=RoomLimits(
            options.source_bytes,
            options.request_source_bytes,
            options.preparing,
            options.fetches,
            options.decoding_pixels,
        ),
        pulse=anyio.from_thread.check_cancelled,
    )
