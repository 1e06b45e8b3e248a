"""One conversion from start to end: read configs, check tensors, plan, write, account.

Owns the order of things and the complaints about a checkpoint as a whole (missing and unexpected
tensors, absent side files).  Promises that nothing is written before everything has been checked.

The one thing a reader would get wrong: components are taken as the checkpoint has them; a checkpoint
without ``mtp.*`` or ``model.visual.*`` tensors gives an artifact without those components.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ninfer.artifact import inventory
from ninfer.artifact.convert import plan as planning
from ninfer.artifact.convert import sources
from ninfer.artifact.convert.checkpoint import Checkpoint, read_json_file, read_side_file
from ninfer.artifact.convert.configs import Family, read_family
from ninfer.artifact.convert.proposal import choose_ids
from ninfer.artifact.convert.recipes import RECIPES, choose
from ninfer.artifact.convert.sources import Source, Sources
from ninfer.artifact.errors import ArtifactError, Member
from ninfer.artifact.inventory import Inventory
from ninfer.artifact.manifest import Proposal, Shape
from ninfer.artifact.write import (
    MAX_FILE_BYTES,
    ComponentPlan,
    Plan,
    Slice,
    TensorPlan,
    planned,
    write_artifact,
)
from ninfer.faults import StartupError
from ninfer.model.config import read_draft_config

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
VISION_FILES = ("preprocessor_config.json", "video_preprocessor_config.json")
LISTED = 8  # names shown of a long list


@attrs.frozen
class Options:
    """What the operator asked for."""

    source: Path
    target: Path
    recipe: str
    name: str | None = None
    proposal_rows: int | None = None
    proposal_ids: Path | None = None
    dflash: Path | None = None
    max_file_bytes: int = MAX_FILE_BYTES


@attrs.frozen
class Report:
    """What came out: objects and bytes by format, and every matrix that did not fit its format."""

    name: str
    components: tuple[str, ...]
    payload_bytes: int
    tensors: Mapping[str, tuple[int, int]]
    fallbacks: Mapping[str, str]


Progress = Callable[[int, int], None]


def convert(options: Options, progress: Progress | None = None) -> Report:
    """Convert a checkpoint directory.  Raises StartupError."""
    if options.name is not None:
        Member(options.target, "--name", options.name).string()
    family = read_family(read_json_file(options.source / "config.json"))
    with Checkpoint(options.source) as checkpoint:
        job = _Job(options, family, checkpoint)
        job.add_model()
        if options.proposal_rows is not None:
            job.add_proposal(options.proposal_rows)
        if options.dflash is None:
            return job.write(progress)
        with Checkpoint(options.dflash) as drafter:
            job.add_dflash(drafter, options.dflash)
            return job.write(progress)


class _Job:
    """The growing plan of one conversion."""

    def __init__(self, options: Options, family: Family, checkpoint: Checkpoint) -> None:
        self.options, self.family, self.checkpoint = options, family, checkpoint
        self.recipe = RECIPES[options.recipe]
        self.fallbacks: dict[str, str] = {}
        self.components: dict[str, ComponentPlan] = {}
        self.tensors: list[TensorPlan] = []
        self.bindings: dict[str, tuple[Slice, ...]] = {}

    def format_of(self, name: str, shape: Shape) -> str:
        """Choose a format, noting where the recipe's own does not fit."""
        form, reason = choose(self.recipe, self.family.sparse, name, shape)
        if reason is not None:
            self.fallbacks[name] = reason
        return form

    def add_model(self) -> None:
        """Plan text, and mtp and vision where the checkpoint has them."""
        family, present = self.family, self.checkpoint.tensors.keys()
        parts = {"text": (inventory.text(family.text), sources.text(family.text, family.text_prefix))}
        if any(name.startswith("mtp.") for name in present):
            parts["mtp"] = inventory.mtp(family.text), sources.mtp(family.text)
        if family.vision is not None and any(name.startswith("model.visual.") for name in present):
            parts["vision"] = inventory.vision(family.vision), sources.vision(family.vision)
        check_tensors(self.checkpoint, [source for _, part in parts.values() for source in part.values()])
        for component, (known, part) in parts.items():
            groups = planning.VISION_GROUPS if component == "vision" else planning.GROUPS
            self._add(self.checkpoint, known, part, groups)
        if family.text.tied_embeddings:
            self.bindings["text/output_head"] = self.bindings["text/token_embedding"]
        self._add_components(list(parts))

    def _add_components(self, names: list[str]) -> None:
        files = {"text": TEXT_FILES, "vision": VISION_FILES}
        for name in names:
            resources = {role: read_role(self.options.source, role) for role in files.get(name, ())}
            target = "text" if name == "mtp" else None
            self.components[name] = ComponentPlan(self.family.configs[name], resources, target)

    def _add(
        self,
        checkpoint: Checkpoint,
        known: Inventory,
        part: Sources,
        groups: Sequence[tuple[str, tuple[str, ...]]],
    ) -> None:
        found = planning.plan_component(checkpoint, known, part, groups, self.format_of)
        self.tensors += found.tensors
        self.bindings |= found.bindings

    def add_proposal(self, rows: int) -> None:
        """Plan the drafting head: chosen rows of the output head."""
        text, files = self.family.text, self.components["text"].resources
        ids = choose_ids(
            rows,
            text.vocab,
            self.options.proposal_ids,
            files["tokenizer.json"],
            files["tokenizer_config.json"],
        )
        full = sources.text(text, self.family.text_prefix)
        head = full.get("text/output_head", full["text/token_embedding"])
        chosen: Sources = {"proposal/head": attrs.evolve(head, spans=tuple(_runs(ids.tolist())))}
        self._add(self.checkpoint, inventory.proposal(text, rows), chosen, ())
        self.tensors.append(planned("proposal/token_ids", ids, "int32"))
        self.bindings["proposal/token_ids"] = (Slice("proposal/token_ids"),)
        self.components["text"] = attrs.evolve(self.components["text"], proposal=Proposal(rows))

    def add_dflash(self, drafter: Checkpoint, directory: Path) -> None:
        """Plan a block drafter from its own checkpoint directory."""
        config = read_json_file(directory / "config.json")
        raw = {name: member.value for name, member in config.mapping().items()}
        raw["rope_parameters"] = raw.get("rope_parameters") or {"rope_theta": raw.pop("rope_theta", None)}
        try:
            draft = read_draft_config(raw, self.family.text)
        except StartupError as problem:
            raise StartupError(f"{config.file}: {problem}") from problem
        if draft.conv_taps:
            raise StartupError(
                f"{config.file}: DFlash2 checkpoints can't be converted yet, only DFlash ones"
            )
        part = sources.dflash(draft)
        check_tensors(drafter, list(part.values()))
        self._add(drafter, inventory.draft(draft, "dflash"), part, planning.DRAFT_GROUPS)
        for name in [name for name in self.bindings if name.startswith("dflash/")]:
            stem, _, leaf = name.rpartition("/")
            if leaf in ("key", "value"):
                self.bindings[f"{stem}/context_{leaf}"] = self.bindings[name]
        self.components["dflash"] = ComponentPlan(_kept(raw), target="text")

    def write(self, progress: Progress | None) -> Report:
        """Write the artifact."""
        options = self.options
        name = options.name or options.source.resolve().name
        plan = Plan(
            name=name,
            components=self.components,
            tensors=tuple(self.tensors),
            bindings=self.bindings,
            provenance={"recipe": options.recipe, "source": options.source.resolve().name},
        )
        try:
            size = write_artifact(
                options.target, plan, max_file_bytes=options.max_file_bytes, progress=progress
            )
        except OSError as problem:
            raise StartupError(f"{options.target}: can't be written ({problem.strerror})") from problem
        except ValueError as problem:
            raise StartupError(f"{options.target}: can't be written ({problem})") from problem
        counts = Counter(tensor.format for tensor in plan.tensors)
        sizes: Counter[str] = Counter()
        for tensor in plan.tensors:
            sizes[tensor.format] += tensor.bytes
        totals = {form: (counts[form], sizes[form]) for form in sorted(counts)}
        return Report(name, tuple(self.components), size, totals, self.fallbacks)


def read_role(directory: Path, role: str) -> bytes:
    """Read a frontend file; a chat template may also live inside ``tokenizer_config.json``."""
    path = directory / role
    if role == "chat_template.jinja" and not path.exists():
        config = read_json_file(directory / "tokenizer_config.json").mapping()
        if "chat_template" in config and isinstance(config["chat_template"].value, str):
            return str(config["chat_template"].value).encode()
    return read_side_file(path)


def check_tensors(checkpoint: Checkpoint, wanted: Sequence[Source]) -> None:
    """Refuse a checkpoint that lacks a tensor, has one too many, or has one in another shape."""
    shapes = {source.tensor: source.shape for source in wanted}
    missing = [name for name in shapes if name not in checkpoint.tensors]
    strange = [name for name in checkpoint.tensors if name not in shapes]
    wrong = [
        f"{name} {list(checkpoint.tensors[name].shape)} instead of {list(shape)}"
        for name, shape in shapes.items()
        if name in checkpoint.tensors and checkpoint.tensors[name].shape != shape
    ]
    said = [
        f"{len(names)} {what}: {', '.join(names[:LISTED])}{', ...' if len(names) > LISTED else ''}"
        for what, names in (("missing", missing), ("unexpected", strange), ("of another shape", wrong))
        if names
    ]
    if said:
        expected = f"the {len(shapes)} tensors of this model"
        raise ArtifactError(checkpoint.directory, "tensors", "; ".join(said), expected)


def _runs(ids: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending ids as row spans."""
    for _, run in itertools.groupby(enumerate(ids), lambda pair: pair[1] - pair[0]):
        members = [value for _, value in run]
        yield members[0], members[-1] + 1


DRAFT_KEPT = (
    "architectures",
    "model_type",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "block_size",
    "dflash_config",
)


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a drafter that an artifact keeps."""
    return {name: config[name] for name in DRAFT_KEPT if name in config}
