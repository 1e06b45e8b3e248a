"""``InferenceEngine``: the server's engine for programs, on a thread of its own.

Owns a portal thread that runs one event loop with device and engine.  Promises that every call returns
or raises, that leaving a stream early frees its lane, and that ``shutdown`` ends the thread.

The one thing a reader would get wrong: a prompt is raw text, not a conversation; control tokens that it
spells are control tokens, because the caller is the operator.  ``chat`` renders the model's template.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, Self, overload

import anyio
import anyio.to_thread
import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from ninfer.api.backend import chosen_backend
from ninfer.api.sampling import SamplingPipeline, pipeline
from ninfer.artifact import open_artifact
from ninfer.engine.job import Committed, Done, Failed, Job, Sampling
from ninfer.engine.loop import Engine
from ninfer.faults import Refused
from ninfer.frontend import ArtifactFront, build_front, components_of
from ninfer.observe.published import stats_object, totals
from ninfer.prompt.conversation import Conversation, Message, TextPart
from ninfer.prompt.prepared import Prepared
from ninfer.runtime.build import build_device
from ninfer.settings import EngineOptions, GenerationDefaults

_END = object()


class InferenceEngine:
    """Generates text from one artifact.

    ``max_batch_size`` lanes (1..8), ``max_seq_len`` tokens a sequence.  ``page_size`` and ``n_tokens``
    shape the KV pool: None for ``n_tokens`` gives every lane its whole span, so that nobody ever waits
    for memory (the contiguous mapping); a number shares that many tokens among all.
    Raises ``StartupError`` when the artifact or the backend cannot be used.
    """

    def __init__(
        self,
        artifact: str | Path,
        *,
        max_batch_size: int = 1,
        max_seq_len: int = 2048,
        page_size: int = 64,
        n_tokens: int | None = None,
        max_waiting: int = 1024,
    ) -> None:
        self.backend_name = chosen_backend() or "auto"
        capacity = max_batch_size * max_seq_len if n_tokens is None else n_tokens
        self._options = EngineOptions(
            max_context=max_seq_len,
            kv_capacity=capacity,
            max_concurrency=max_batch_size,
            max_pending=max_waiting,
            pending_timeout=float("inf"),
            page_tokens=page_size,
        )
        self._path = Path(artifact)
        self._finished = 0
        self._context = start_blocking_portal("trio")
        self._portal: BlockingPortal = self._context.__enter__()
        try:
            self._future, _ = self._portal.start_task(self._serve)
        except BaseException:
            self._context.__exit__(None, None, None)
            raise

    # Life

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Cancel what is running and end the thread; calling it twice is harmless."""
        if self._future is None:
            return
        future, self._future = self._future, None
        future.cancel()
        self._context.__exit__(None, None, None)

    _future: Future[None] | None = None

    async def _serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with AsyncExitStack() as stack:
            artifact = stack.enter_context(open_artifact(self._path))
            options = self._options
            artifact.require(components_of(options))
            self._front: ArtifactFront = build_front(
                artifact, None, options.max_context, GenerationDefaults()
            )
            device = await stack.enter_async_context(build_device(artifact, options, self.backend_name))
            self._engine = Engine(device, options)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._engine.run)
                task_status.started()

    # Generation

    @overload
    def generate(self, prompt: str, stream: Literal[False] = False, **settings: object) -> str: ...
    @overload
    def generate(
        self, prompt: list[str], stream: Literal[False] = False, **settings: object
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: str, stream: Literal[True], **settings: object
    ) -> Generator[str, None, None]: ...
    @overload
    def generate(
        self, prompt: list[str], stream: Literal[True], **settings: object
    ) -> Generator[tuple[int, str], None, None]: ...
    def generate(self, prompt, stream=False, **settings):  # type: ignore[no-untyped-def]
        """Generate from one prompt or several.

        Returns the text, a list of texts, a generator of text pieces, or (for several prompts) a
        generator of (index, piece).  Settings: ``max_tokens`` (128), ``temperature`` (1), ``top_p`` (1),
        ``top_k`` (50), ``frequency_penalty`` (0), ``seed`` (random), ``stop`` (strings),
        ``strategy`` (a SamplingPipeline instead of the three).  Raises ``Refused`` for a prompt that
        cannot be served and ``ValueError`` for a setting that is unknown.
        """
        self._check_backend()
        one = isinstance(prompt, str)
        jobs = [self._job(text, settings) for text in ([prompt] if one else prompt)]
        pieces = self._pieces(jobs)
        if stream:
            return (piece for _, piece in pieces) if one else pieces
        texts = [""] * len(jobs)
        for index, piece in pieces:
            texts[index] += piece
        return texts[0] if one else texts

    async def generate_async(self, prompt: str, **settings: object) -> AsyncGenerator[str, None]:
        """Yield pieces of text, from any event loop that anyio knows."""
        pieces = self.generate(prompt, True, **settings)
        try:
            while (piece := await anyio.to_thread.run_sync(next, pieces, _END)) is not _END:
                yield str(piece)
        finally:
            pieces.close()

    def chat(self, messages: Sequence[Mapping[str, str]], **settings: object) -> str:
        """Answer a conversation of ``{"role", "content"}`` messages through the model's template."""
        turns = tuple(Message(m["role"], (TextPart(m["content"]),)) for m in messages)  # type: ignore[arg-type]
        prepared = self._front.prepare(Conversation(turns))
        return "".join(piece for _, piece in self._pieces([self._job(prepared, settings)]))

    def get_stats(self) -> dict[str, object]:
        """Return counts of tasks and tokens, as ``/stats`` does."""
        return stats_object(totals(self._engine.stats()), {"finished": self._finished})

    # Inside

    def _check_backend(self) -> None:
        wanted = chosen_backend()
        if wanted is not None and wanted != self.backend_name:
            raise RuntimeError(f"this engine computes on {self.backend_name}, the call asks for {wanted}")

    def _job(self, prompt: str | Prepared, given: Mapping[str, object]) -> Job:
        settings = _read(given)
        vocabulary = self._front.preparer.vocabulary
        if isinstance(prompt, str):
            ids = vocabulary.encode_sealed(vocabulary.seals.seal(prompt))
            prompt = Prepared(tuple(ids), thinking=False)
        return Job(
            request_id="api",
            prompt=prompt,
            sampling=settings.sampling,
            max_tokens=settings.max_tokens,
            judge=self._front.judge(prompt, settings.stop),
            deadline=float("inf"),
        )

    def _pieces(self, jobs: Sequence[Job]) -> Generator[tuple[int, str], None, None]:
        heard: SimpleQueue[tuple[int, str | BaseException | None]] = SimpleQueue()
        running = [
            self._portal.start_task_soon(self._listen, index, job, heard) for index, job in enumerate(jobs)
        ]
        try:
            yield from self._until_all_end(heard, len(jobs))
        finally:
            for task in running:
                task.cancel()

    def _until_all_end(
        self, heard: SimpleQueue[tuple[int, str | BaseException | None]], open_jobs: int
    ) -> Iterator[tuple[int, str]]:
        while open_jobs:
            index, piece = heard.get()
            if isinstance(piece, BaseException):
                raise piece
            if piece is None:
                open_jobs -= 1
                self._finished += 1
            elif piece:
                yield index, piece

    async def _listen(
        self, index: int, job: Job, heard: SimpleQueue[tuple[int, str | BaseException | None]]
    ) -> None:
        try:
            with self._engine.seat(), self._engine.submit(job) as events:
                async for event in events:
                    if isinstance(event, Failed):
                        raise Refused(event.fault)
                    if isinstance(event, Committed | Done) and event.piece is not None:
                        heard.put((index, event.piece.reasoning + event.piece.content))
            heard.put((index, None))
        except Refused as refused:
            heard.put((index, refused))


_KNOWN = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "seed", "stop", "strategy")


@attrs.frozen
class _Settings:
    """What a call asked for."""

    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]


def _read(given: Mapping[str, object]) -> _Settings:
    for name in given:
        if name not in _KNOWN:
            raise ValueError(f"unknown setting {name!r}; known: {', '.join(_KNOWN)}")
    chosen = given.get("strategy")
    if chosen is None:
        chosen = pipeline(
            _number(given, "temperature", 1.0),
            int(_number(given, "top_k", 50)),
            _number(given, "top_p", 1.0),
        )
    if not isinstance(chosen, SamplingPipeline):
        raise ValueError("strategy must be a SamplingPipeline")
    seed = given.get("seed")
    sampling = chosen.sampling(secrets.randbits(63) if seed is None else int(_number(given, "seed", 0)))
    sampling = attrs.evolve(sampling, frequency=_number(given, "frequency_penalty", 0.0))
    stop = given.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else tuple(str(text) for text in stop)  # type: ignore[attr-defined]
    return _Settings(int(_number(given, "max_tokens", 128)), sampling, stops)


def _number(given: Mapping[str, object], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number")
    return value
