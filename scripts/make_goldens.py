"""Make reference results for a bundled artifact: the stock transformers model on its decoded weights.

    python -m venv .venv.torch
    .venv.torch/bin/pip install -e . torch transformers safetensors
    .venv.torch/bin/python scripts/make_goldens.py fixtures/tiny-qwen3_5.ninfer

Needs torch and transformers (CPU, float32); nothing in the product does.  Half a minute on one core.
Reads ``prompts.json`` and the pictures beside the artifact, writes ``goldens-<name>.json`` and
``goldens-<name>.npz`` there.

The JSON holds, per prompt: name, messages, tools, enable_thinking, ``rendered`` (the template's text),
``expanded`` (pads repeated; what is tokenised), greedy_text and token counts; and ``weights_digest`` of
the decoded weights.  The archive holds, for prompt NN (n tokens, g greedy tokens, L layers):

    NN.input_ids          (n,)      int32
    NN.position_ids       (3, n)    int32    time, height, width
    NN.grid               (3,)      int32    media only: patches in time, height, width
    NN.pixels             (p, 1536) float32  media only: patches of the picture or clip, columns c, t, y, x
    NN.features           (p/4, H)  float32  media only: the vision tower's output
    NN.layer_norms        (L, n)    float32  L2 norm of each layer's output at each position
    NN.last_hidden        (H,)      float32  last prompt position, after the final norm
    NN.last_logits        (V,)      float32  last prompt position
    NN.greedy_ids         (g,)      int32    up to 48, an end token included
    NN.top_ids, NN.top_logits (g, 5)         the five best of each greedy step
    NN.mtp_drafts         (g, 3)    int32    drafted after greedy token j was known, full head
    NN.proposal_drafts    (g, 3)    int32    the same with the drafting head
    NN.expert_ids         (L, n, k) uint8    sparse only: chosen experts, best first
    NN.expert_weights     (L, k)    float32  sparse only: their weights at the last prompt position

The one thing a reader would get wrong: drafts are recursive.  The first MTP row of a round pairs the
newest token with the target's hidden state one position earlier; later rows take the head's own output.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hf_weights import StateDict, hf_config
from PIL import Image

from ninfer.artifact import Artifact, open_artifact
from ninfer.artifact.digest import weights_digest

DEPTH, STEPS, TOP = 3, 48, 5
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json")
Arrays = dict[str, np.ndarray]


class Drafter(torch.nn.Module):
    """The MTP layer, made of the stock model's own classes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        lm = model.model.language_model
        config, layer = lm.config, next(x for x in lm.layers if hasattr(x, "self_attn"))
        norm, width = type(lm.norm), config.hidden_size
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding = norm(width, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(width, eps=config.rms_norm_eps)
        full = config.layer_types.index("full_attention")
        self.layers = torch.nn.ModuleList([type(layer)(config, full)])
        self.norm = norm(width, eps=config.rms_norm_eps)

    def forward(self, embeds: torch.Tensor, hidden: torch.Tensor, rope: Any) -> torch.Tensor:
        """(1, S, H) token embeddings and hidden states -> (1, S, H) draft hidden states, causal."""
        pair = [self.pre_fc_norm_embedding(embeds), self.pre_fc_norm_hidden(hidden)]
        count = embeds.shape[1]
        mask = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
        x = self.layers[0](self.fc(torch.cat(pair, -1)), position_embeddings=rope, attention_mask=mask)
        return self.norm(x[0] if isinstance(x, tuple) else x)


class Reference:
    """The stock model with an artifact's weights, its tokenizer and its picture processor."""

    def __init__(self, artifact: Artifact) -> None:
        from transformers import AutoModelForImageTextToText, AutoTokenizer
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        with tempfile.TemporaryDirectory() as directory:
            for role in TEXT_FILES:
                Path(directory, role).write_bytes(artifact.resource(role))
            self.tokens = AutoTokenizer.from_pretrained(directory)
            self.pictures = Qwen2VLImageProcessorPil.from_pretrained(directory)
        self.ids = self.tokens.get_vocab()
        config = hf_config(artifact, self.ids)
        self.model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
        self.lm = self.model.model.language_model
        self.drafter = Drafter(self.model).eval()
        state = StateDict(artifact).everything()
        mtp = {
            name.removeprefix("mtp."): state.pop(name) for name in list(state) if name.startswith("mtp.")
        }
        self.model.load_state_dict(state)
        self.drafter.load_state_dict(mtp)
        self.draft_head = torch.from_numpy(np.array(artifact.decode("proposal/head")))
        self.draft_ids = artifact.decode("proposal/token_ids")
        self.vision = artifact.vision_config
        self.stops = [self.ids["<|im_end|>"], self.ids["<|endoftext|>"]]

    def full_head(self, hidden: torch.Tensor) -> int:
        """The best token by the output head."""
        return int((hidden @ self.model.lm_head.weight.T).argmax())

    def small_head(self, hidden: torch.Tensor) -> int:
        """The best token by the drafting head."""
        return int(self.draft_ids[int((hidden @ self.draft_head.T).argmax())])


def patches(frames: list[Image.Image], ref: Reference) -> tuple[torch.Tensor, list[int]]:
    """Cut frames, sides divisible by two patches, to (p, 3 * t * y * x) and a grid."""
    c = ref.vision
    raw = np.stack([np.asarray(frame.convert("RGB"), np.float32) for frame in frames])
    t, (h, w) = len(raw) // c.temporal_patch, (side // c.patch for side in raw.shape[1:3])
    assert raw.shape == (t * c.temporal_patch, h * c.patch, w * c.patch, 3)
    m = c.merge
    cut = (raw / 127.5 - 1).reshape(t, c.temporal_patch, h // m, m, c.patch, w // m, m, c.patch, 3)
    rows = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(t * h * w, -1)
    return torch.from_numpy(np.ascontiguousarray(rows, np.float32)), [t, h, w]


def media_of(messages: list[dict[str, Any]], base: Path, ref: Reference) -> dict[str, Any] | None:
    """Load the one picture or clip that a prompt may have."""
    for part in itertools.chain(*(m["content"] for m in messages if isinstance(m["content"], list))):
        if part["type"] == "image":
            image = Image.open(base / part["image"]).convert("RGB")
            made = ref.pictures(images=[image], return_tensors="pt")
            grid = made["image_grid_thw"][0].tolist()
            size = (grid[2] * ref.vision.patch, grid[1] * ref.vision.patch)
            if image.size == size:
                own, _ = patches([image, image], ref)
                assert (own - made["pixel_values"]).abs().max() < 1e-5
            return {"kind": "image", "pixels": made["pixel_values"], "grid": grid, "fps": 0}
        if part["type"] == "video":
            frames = [Image.open(base / name) for name in part["video"]]
            pixels, grid = patches(frames, ref)
            return {"kind": "video", "pixels": pixels, "grid": grid, "fps": part["fps"]}
    return None


def expand(text: str, media: dict[str, Any] | None, ref: Reference) -> str:
    """Repeat pads, one per merged patch; a clip becomes one timed group per pair of frames."""
    if media is None:
        return text
    t, h, w = media["grid"]
    pad = f"<|{media['kind']}_pad|>"
    run = pad * (h * w // ref.vision.merge**2)
    if media["kind"] == "image":
        return text.replace(pad, run)
    times = [(2 * i + 0.5) / media["fps"] for i in range(t)]
    groups = "".join(f"<{at:.1f} seconds><|vision_start|>{run}<|vision_end|>" for at in times)
    return text.replace(f"<|vision_start|>{pad}<|vision_end|>", groups)


class Prompt:
    """One prompt going through the reference."""

    def __init__(self, ref: Reference, ids: torch.Tensor, media: dict[str, Any] | None) -> None:
        self.ref, self.ids, self.media = ref, ids, media
        self.count = ids.shape[1]
        self.extra: dict[str, Any] = {}
        if media is not None:
            image = media["kind"] == "image"
            self.extra["pixel_values" if image else "pixel_values_videos"] = media["pixels"]
            self.extra[f"{media['kind']}_grid_thw"] = torch.tensor([media["grid"]])

    def types(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Which tokens are pictures (1) and clips (2)."""
        names = self.ref.ids
        kinds = (ids == names["<|image_pad|>"]).int() + 2 * (ids == names["<|video_pad|>"]).int()
        return {"mm_token_type_ids": kinds} if self.media is not None else {}

    def positions(self, ids: torch.Tensor) -> torch.Tensor:
        """(3, 1, S) position ids."""
        if self.media is None:
            return torch.arange(ids.shape[1])[None, None].expand(3, 1, -1)
        grids = {name: value for name, value in self.extra.items() if "grid" in name}
        return self.ref.model.model.get_rope_index(ids, self.types(ids)["mm_token_type_ids"], **grids)[0]

    def features(self) -> torch.Tensor:
        """The vision tower's output for this prompt's media."""
        assert self.media is not None
        grid = torch.tensor([self.media["grid"]])
        made = self.ref.model.model.get_image_features(self.media["pixels"], grid)
        return torch.cat(list(made.pooler_output))

    def embeds(self, ids: torch.Tensor) -> torch.Tensor:
        """Token embeddings, media rows replaced by features."""
        found = self.ref.lm.embed_tokens(ids)
        if self.media is not None:
            found = found.masked_scatter(
                self.types(ids)["mm_token_type_ids"][..., None] > 0, self.features()
            )
        return found

    def prefill(self) -> Arrays:
        """Run the prompt once, recording every layer and the router."""
        ref, norms, hooks = self.ref, [], []
        routes: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer in ref.lm.layers:
            hooks.append(layer.register_forward_hook(lambda m, a, o: norms.append(o[0].norm(dim=-1))))
            if hasattr(layer.mlp, "gate"):
                hook = layer.mlp.gate.register_forward_hook(lambda m, a, o: routes.append((o[2], o[1][-1])))
                hooks.append(hook)
        hidden: list[torch.Tensor] = []
        hooks.append(ref.lm.norm.register_forward_hook(lambda m, a, o: hidden.append(o[0, -1])))
        ref.model.model.rope_deltas = None
        out = ref.model(input_ids=self.ids, **self.extra, **self.types(self.ids))
        for hook in hooks:
            hook.remove()
        found = {"layer_norms": torch.stack([x.reshape(-1) for x in norms]), "last_hidden": hidden[0]}
        found["last_logits"] = out.logits[0, -1]
        if routes:
            found["expert_ids"] = torch.stack([ids for ids, _ in routes]).to(torch.uint8)
            found["expert_weights"] = torch.stack([weights for _, weights in routes])
        return {name: value.numpy() for name, value in found.items()}

    def generate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Greedy continuation: the whole sequence (1, n + g) and the logits of each step (g, V)."""
        ref = self.ref
        ref.model.model.rope_deltas = None
        made = ref.model.generate(
            input_ids=self.ids,
            attention_mask=torch.ones_like(self.ids),
            max_new_tokens=STEPS,
            do_sample=False,
            eos_token_id=ref.stops,
            pad_token_id=ref.stops[-1],
            output_logits=True,
            return_dict_in_generate=True,
            **self.extra,
            **self.types(self.ids),
        )
        return made.sequences, torch.stack(made.logits)[:, 0]

    def drafts(self, sequence: torch.Tensor, head: Any) -> np.ndarray:
        """Three recursive drafts after each greedy token."""
        ref = self.ref
        embeds, positions = self.embeds(sequence), self.positions(sequence)
        hidden = ref.lm(inputs_embeds=embeds, position_ids=positions).last_hidden_state
        best = (hidden[0] @ ref.model.lm_head.weight.T).argmax(-1)
        assert best[self.count - 1 : -1].tolist() == sequence[0, self.count :].tolist()
        rows = [
            self._chain(embeds[:, 1 : k + 2], hidden[:, : k + 1], positions[:, :, : k + 1], head)
            for k in range(self.count - 1, sequence.shape[1] - 1)
        ]
        return np.array(rows, np.int32)

    def _chain(
        self, embeds: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, head: Any
    ) -> list[int]:
        found: list[int] = []
        while True:
            rope = self.ref.lm.rotary_emb(embeds, positions)
            out = self.ref.drafter(embeds, hidden, rope)[:, -1:]
            found.append(head(out[0, 0]))
            if len(found) == DEPTH:
                return found
            embeds = torch.cat([embeds, self.ref.lm.embed_tokens(torch.tensor([[found[-1]]]))], 1)
            hidden = torch.cat([hidden, out], 1)
            positions = torch.cat([positions, positions[:, :, -1:] + 1], 2)


@torch.no_grad()
def run_prompt(ref: Reference, prompt: dict[str, Any], base: Path) -> tuple[dict[str, Any], Arrays]:
    """Everything about one prompt: its JSON row and its arrays."""
    media = media_of(prompt["messages"], base, ref)
    rendered = ref.tokens.apply_chat_template(
        prompt["messages"],
        tools=prompt["tools"],
        add_generation_prompt=True,
        enable_thinking=prompt["enable_thinking"],
        tokenize=False,
    )
    expanded = expand(rendered, media, ref)
    ids = ref.tokens(expanded, return_tensors="pt")["input_ids"]
    run = Prompt(ref, ids, media)
    arrays: Arrays = {"input_ids": ids[0].numpy().astype(np.int32)}
    arrays["position_ids"] = run.positions(ids)[:, 0].numpy().astype(np.int32)
    if media is not None:
        arrays |= {"grid": np.array(media["grid"], np.int32), "pixels": media["pixels"].numpy()}
        arrays["features"] = run.features().numpy()
    arrays |= run.prefill()
    sequence, logits = run.generate()
    greedy, top = sequence[0, run.count :], logits.topk(TOP)
    arrays |= {
        "greedy_ids": greedy.numpy().astype(np.int32),
        "top_ids": top.indices.numpy().astype(np.int32),
    }
    arrays["top_logits"] = top.values.numpy()
    arrays["mtp_drafts"] = run.drafts(sequence, ref.full_head)
    arrays["proposal_drafts"] = run.drafts(sequence, ref.small_head)
    row = {**prompt, "rendered": rendered, "expanded": expanded, "prompt_tokens": run.count}
    row |= {"greedy_tokens": len(greedy), "greedy_text": ref.tokens.decode(greedy)}
    return row, arrays


def main(path: Path) -> None:
    """Write the goldens of one artifact."""
    torch.manual_seed(0)
    base = path.parent
    rows: list[dict[str, Any]] = []
    archive: Arrays = {}
    with open_artifact(path) as artifact:
        ref = Reference(artifact)
        for index, prompt in enumerate(json.loads((base / "prompts.json").read_text())):
            row, arrays = run_prompt(ref, prompt, base)
            rows.append(row)
            archive |= {f"{index:02d}.{name}": value for name, value in arrays.items()}
            print(row["name"], row["prompt_tokens"], repr(row["greedy_text"]), flush=True)
        head = {"artifact": path.name, "weights_digest": weights_digest(artifact)}
    np.savez_compressed(base / f"goldens-{path.stem}.npz", **archive)
    text = json.dumps({**head, "prompts": rows}, ensure_ascii=False, indent=1)
    (base / f"goldens-{path.stem}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
