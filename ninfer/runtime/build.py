"""From an artifact and options to a device that runs units.

Owns the choice of the backend and the sizes of everything: lanes, slots, pages.  Weights are loaded
on the device's own thread, before the device is handed out.  The one thing a reader would get wrong:
``vocab`` of the geometry is how many ids may be sampled, which the tokenizer knows; the head has more rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import attrs

from ninfer import __version__
from ninfer.engine.device import Geometry
from ninfer.faults import StartupError
from ninfer.model.config import TextConfig, read_vision_config
from ninfer.model.registry import architecture_of
from ninfer.model.vision import load_tower
from ninfer.model.weights import Loader, Proposal, load_proposal
from ninfer.ops.numpy_attention import Rotary
from ninfer.ops.numpy_vision import NumpyVision
from ninfer.ops.numpy_weights import NumpyLoader
from ninfer.ops.on_numpy import NumpyVerbs
from ninfer.runtime.device import Program, ThreadDevice
from ninfer.runtime.eyes import Eyes
from ninfer.runtime.inventory import Inventory, bytes_of
from ninfer.runtime.kvformat import KV_FORMATS
from ninfer.runtime.lanes import Lane
from ninfer.runtime.program import NumpyProgram
from ninfer.runtime.state import new_images, new_pages
from ninfer.settings import EngineOptions
from ninfer.spec.drafter import DRAFTERS, Drafter

GIB = 1 << 30
HOST_IMAGES = 8  # images that the default host budget holds beside its 8 GiB


class Component(Protocol):
    """One component of an artifact."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Its config."""


class Model(Protocol):
    """What is read of an artifact."""

    @property
    def components(self) -> Mapping[str, Component]:
        """Components by id."""

    def has(self, name: str) -> bool:
        """Whether a parameter is bound."""

    def decode(self, name: str) -> Any:
        """Read a parameter."""

    def has_resource(self, role: str) -> bool:
        """Whether a frontend file is there."""

    def resource(self, role: str) -> bytes:
        """Read a frontend file."""


@asynccontextmanager
async def build_device(
    model: Model,
    options: EngineOptions,
    backend: str = "auto",
    progress: Callable[[str], None] = lambda text: None,
) -> AsyncIterator[ThreadDevice]:
    """Load a model on its own thread and hand out the device.

    ``backend`` is auto, numpy or cuda.  Raises ``StartupError``.
    """
    build = choose_backend(backend)
    waits = options.waits
    if build is build_numpy:
        waits = attrs.evolve(waits, work=waits.numpy_work)
    async with ThreadDevice.start(lambda: build(model, options, progress), waits) as device:
        yield device


Builder = Callable[[Model, EngineOptions, Callable[[str], None]], Program]


def choose_backend(name: str) -> Builder:
    """Return what builds the program of a backend.  Raises ``StartupError``.

    ``auto`` takes the GPU where CuPy finds one.
    """
    if name == "numpy":
        return build_numpy
    if name not in ("auto", "cuda"):
        raise StartupError(f"There is no backend {name!r}; choose auto, numpy or cuda.")
    from ninfer.runtime.cuda_open import cuda_is_here

    return build_on_card if name == "cuda" or cuda_is_here() else build_numpy


def build_on_card(model: Any, options: EngineOptions, progress: Callable[[str], None]) -> Program:
    """Load everything into a CUDA program."""
    from ninfer.runtime.cuda_open import build_cuda

    text = model.components["text"].config
    vocab = sampleable(model, architecture_of(text).read(text))
    return build_cuda(model, options, progress, vocab)


def build_numpy(model: Model, options: EngineOptions, progress: Callable[[str], None]) -> NumpyProgram:
    """Load everything into a NumPy program."""
    text = model.components["text"].config
    architecture = architecture_of(text)
    config = architecture.read(text)
    loader = NumpyLoader(model)
    progress("loading weights")
    began = time.perf_counter()
    decoder = architecture.load(loader, config)
    if options.proposal_head:
        decoder = attrs.evolve(decoder, proposal=_proposal(loader))
    drafter = _drafter(model, options, lambda name: DRAFTERS[name](loader, decoder))
    eyes = _eyes(model, loader, config) if options.vision else None
    loaded = time.perf_counter()
    layers = config.layer_kinds.count("full_attention") + (drafter is not None)
    options = attrs.evolve(options, max_context=min(options.max_context, config.max_positions))
    pages = page_count(options)
    kv = new_pages(config, layers, kv_format(options), pages, options.page_tokens)
    images = new_images(config, slot_count(options))
    vocab = min(sampleable(model, config), config.vocab)
    geometry = geometry_of(options, vocab, images.image_bytes, kv.page_bytes)
    signature = f"numpy {__version__} {options.kv_dtype} {options.spec} {geometry.page_tokens} " + (
        f"{geometry.image_bytes} {geometry.page_bytes}"
    )
    rotary = Rotary.of(config.rotary_dims, config.rope_theta, config.mrope_section)
    return NumpyProgram(
        geometry=geometry,
        verbs=NumpyVerbs(config.eps, config.key_dim, rotary, kv, images.views),
        decoder=decoder,
        images=images,
        pages=kv,
        lanes=tuple(Lane(vocab) for _ in range(options.max_concurrency)),
        drafter=drafter,
        eyes=eyes,
        signature=signature,
        inventory=Inventory(
            "numpy",
            weights=bytes_of((decoder, drafter, eyes)),
            sequence=images.block.nbytes + kv.codes.nbytes + kv.values.nbytes,
            load_seconds=loaded - began,
        ),
    )


def _eyes(model: Model, loader: Loader, text: TextConfig) -> Eyes:
    if "vision" not in model.components:
        raise StartupError("The artifact has no vision component; start without --vision.")
    config = read_vision_config(model.components["vision"].config, text)
    return Eyes(NumpyVision(), load_tower(loader, config))


def _drafter(model: Model, options: EngineOptions, load: Callable[[str], Drafter]) -> Drafter | None:
    name = options.spec
    if name is None:
        return None
    if name not in DRAFTERS:
        raise StartupError(f"There is no drafter {name!r}; choose one of {', '.join(DRAFTERS)}.")
    if name not in model.components:
        raise StartupError(f"The artifact has no {name} component; start without --spec {name}.")
    if options.draft_tokens < 1:
        raise StartupError(f"--spec {name} needs --draft-tokens of at least 1.")
    return load(name)


def _proposal(loader: Loader) -> Proposal:
    if not loader.has("proposal/head"):
        raise StartupError("The artifact has no proposal head; start without --lm-head-draft.")
    return load_proposal(loader)


def kv_format(options: EngineOptions) -> Any:
    """Look up the cache format.  Raises ``StartupError``."""
    if options.kv_dtype not in KV_FORMATS:
        raise StartupError(
            f"There is no cache format {options.kv_dtype!r}; choose of {', '.join(KV_FORMATS)}."
        )
    return KV_FORMATS[options.kv_dtype]


def page_count(options: EngineOptions) -> int:
    """Pages for ``kv_capacity`` tokens; at least one a lane and one context, at most all lanes full."""
    context = -(-options.max_context // options.page_tokens)
    if options.kv_auto:
        return options.max_concurrency * context
    capacity = options.kv_capacity or options.max_context
    wanted = -(-capacity // options.page_tokens)
    return min(max(wanted, context, options.max_concurrency), options.max_concurrency * context)


def slot_count(options: EngineOptions) -> int:
    """StateImage slots: one a lane and the extra ones."""
    extra = options.device_state_slots
    return options.max_concurrency + (options.max_concurrency if extra is None else extra)


def geometry_of(options: EngineOptions, vocab: int, image_bytes: int, page_bytes: int) -> Geometry:
    """Describe what is on offer; contexts are as long as the options say, which the model must allow."""
    host = options.host_context_bytes
    return Geometry(
        lanes=options.max_concurrency,
        slots=slot_count(options),
        pages=page_count(options),
        page_tokens=options.page_tokens,
        max_context=options.max_context,
        prefill_chunk=options.prefill_chunk,
        vocab=vocab,
        image_bytes=image_bytes,
        page_bytes=page_bytes,
        host_bytes=8 * GIB + HOST_IMAGES * image_bytes if host is None else host,
        drafts=options.draft_tokens if options.spec else 0,
    )


def sampleable(model: Model, config: TextConfig) -> int:
    """One more than the highest token id that the tokenizer knows."""
    if not model.has_resource("tokenizer.json"):
        return config.vocab
    tokenizer = json.loads(model.resource("tokenizer.json"))
    ids: list[int] = list(tokenizer["model"]["vocab"].values())
    ids += [token["id"] for token in tokenizer.get("added_tokens", ())]
    if model.has_resource("tokenizer_config.json"):
        added = json.loads(model.resource("tokenizer_config.json")).get("added_tokens_decoder", {})
        ids += [int(token) for token in added]
    return 1 + max(ids)
