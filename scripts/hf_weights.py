"""From an artifact to the stock transformers model: configs and a float32 state dict.

Independent of the converter on purpose: it is the inverse mapping, written from the Hugging Face side,
so that a mistake in either shows as nonsense text.  Needs torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ninfer.artifact import Artifact

ATTENTION = {
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "output",
    "q_norm": "query_norm",
    "k_norm": "key_norm",
}
DELTA_NET = {
    "in_proj_z": "z",
    "in_proj_a": "a_projection",
    "in_proj_b": "b_projection",
    "out_proj": "output",
    "norm": "norm",
}
State = dict[str, torch.Tensor]


class StateDict:
    """Builds Hugging Face tensors out of logical parameters."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.text = artifact.text_config
        self.state: State = {}

    def read(self, name: str) -> torch.Tensor:
        """Decode one parameter."""
        return torch.from_numpy(np.array(self.artifact.decode(name), np.float32))

    def stack(self, *names: str) -> torch.Tensor:
        """Decode several parameters and lay their rows end to end."""
        return torch.cat([self.read(name) for name in names])

    def everything(self) -> State:
        """Text, mtp and vision tensors under their Hugging Face names."""
        prefix = "model.language_model."
        self.state[f"{prefix}embed_tokens.weight"] = self.read("text/token_embedding")
        self.state[f"{prefix}norm.weight"] = self.read("text/final_norm")
        self.state["lm_head.weight"] = self.read("text/output_head")
        for i, kind in enumerate(self.text.layer_kinds):
            self.layer(f"text/layers/{i}", f"{prefix}layers.{i}", kind == "full_attention")
        self.mtp()
        self.vision()
        return self.state

    def mtp(self) -> None:
        """The multi-token-prediction layer."""
        self.state["mtp.fc.weight"] = self.read("mtp/input_projection")
        self.state["mtp.pre_fc_norm_embedding.weight"] = self.read("mtp/embedding_norm")
        self.state["mtp.pre_fc_norm_hidden.weight"] = self.read("mtp/hidden_norm")
        self.state["mtp.norm.weight"] = self.read("mtp/final_norm")
        self.layer("mtp/layers/0", "mtp.layers.0", True)

    def layer(self, src: str, dst: str, full: bool) -> None:
        """One decoder layer."""
        self.state[f"{dst}.input_layernorm.weight"] = self.read(f"{src}/input_norm")
        self.state[f"{dst}.post_attention_layernorm.weight"] = self.read(f"{src}/post_attention_norm")
        (self.attention if full else self.delta_net)(src, dst)
        (self.dense if self.text.moe is None else self.sparse)(src, f"{dst}.mlp")

    def attention(self, src: str, dst: str) -> None:
        """Query and gate rows go back to alternating head by head."""
        heads, dim = self.text.heads, self.text.head_dim
        query = self.read(f"{src}/attention/query").view(heads, dim, -1)
        gate = self.read(f"{src}/attention/gate").view(heads, dim, -1)
        fused = torch.cat([query, gate], 1).reshape(2 * heads * dim, -1)
        self.state[f"{dst}.self_attn.q_proj.weight"] = fused
        for theirs, ours in ATTENTION.items():
            self.state[f"{dst}.self_attn.{theirs}.weight"] = self.read(f"{src}/attention/{ours}")

    def delta_net(self, src: str, dst: str) -> None:
        """The Gated DeltaNet mixer."""
        below = f"{dst}.linear_attn"
        qkv = self.stack(*(f"{src}/gdn/{name}" for name in ("query", "key", "value")))
        self.state[f"{below}.in_proj_qkv.weight"] = qkv
        for theirs, ours in DELTA_NET.items():
            self.state[f"{below}.{theirs}.weight"] = self.read(f"{src}/gdn/{ours}")
        self.state[f"{below}.conv1d.weight"] = self.read(f"{src}/gdn/convolution").T.contiguous()[:, None]
        self.state[f"{below}.A_log"] = self.read(f"{src}/gdn/a_log")
        self.state[f"{below}.dt_bias"] = self.read(f"{src}/gdn/dt_bias")

    def dense(self, src: str, dst: str) -> None:
        """A dense feed-forward block."""
        for name in ("gate", "up", "down"):
            self.state[f"{dst}.{name}_proj.weight"] = self.read(f"{src}/mlp/{name}")

    def sparse(self, src: str, dst: str) -> None:
        """A mixture of experts with one shared expert."""
        moe = self.text.moe
        assert moe is not None
        below = [f"{src}/moe/experts/{e}" for e in range(moe.experts)]
        gate_up = [self.stack(f"{one}/gate", f"{one}/up") for one in below]
        self.state[f"{dst}.experts.gate_up_proj"] = torch.stack(gate_up)
        self.state[f"{dst}.experts.down_proj"] = torch.stack([self.read(f"{one}/down") for one in below])
        self.state[f"{dst}.gate.weight"] = self.read(f"{src}/moe/router")
        self.state[f"{dst}.shared_expert_gate.weight"] = self.read(f"{src}/moe/shared_score").view(1, -1)
        for name in ("gate", "up", "down"):
            self.state[f"{dst}.shared_expert.{name}_proj.weight"] = self.read(f"{src}/moe/shared/{name}")

    def vision(self) -> None:
        """The vision tower and merger."""
        c, p = self.artifact.vision_config, "model.visual."
        patch = self.read("vision/patch_embedding")
        self.state[f"{p}patch_embed.proj.weight"] = patch.view(-1, 3, c.temporal_patch, c.patch, c.patch)
        self.state[f"{p}patch_embed.proj.bias"] = self.read("vision/patch_embedding_bias")
        self.state[f"{p}pos_embed.weight"] = self.read("vision/position_embedding")
        for i in range(c.depth):
            self.vision_block(f"vision/layers/{i}", f"{p}blocks.{i}")
        for leaf, suffix in (("weight", ""), ("bias", "_bias")):
            self.state[f"{p}merger.norm.{leaf}"] = self.read(f"vision/merger/norm_{leaf}")
            for n in (1, 2):
                self.state[f"{p}merger.linear_fc{n}.{leaf}"] = self.read(f"vision/merger/fc{n}{suffix}")

    def vision_block(self, src: str, dst: str) -> None:
        """One block of the tower."""
        for leaf, suffix in (("weight", ""), ("bias", "_bias")):
            parts = (f"{src}/attention/{name}{suffix}" for name in ("query", "key", "value"))
            self.state[f"{dst}.attn.qkv.{leaf}"] = self.stack(*parts)
            self.state[f"{dst}.attn.proj.{leaf}"] = self.read(f"{src}/attention/output{suffix}")
            for n in (1, 2):
                self.state[f"{dst}.mlp.linear_fc{n}.{leaf}"] = self.read(f"{src}/mlp/fc{n}{suffix}")
                self.state[f"{dst}.norm{n}.{leaf}"] = self.read(f"{src}/norm{n}_{leaf}")


def hf_config(artifact: Artifact, ids: dict[str, int]) -> Any:
    """Build the stock config; ``ids`` gives the ids of the vision tokens by their spelling."""
    from transformers import Qwen3_5Config, Qwen3_5MoeConfig

    kind = Qwen3_5Config if artifact.text_config.moe is None else Qwen3_5MoeConfig
    text = dict(artifact.components["text"].config)
    text["rope_parameters"] = {"rope_type": "default", "mrope_interleaved": True, **text["rope_parameters"]}
    return kind(
        text_config=text,
        vision_config={**artifact.components["vision"].config, "deepstack_visual_indexes": []},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
