"""Conversion: every value lands in its parameter, recipes choose formats, bad checkpoints are explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ninfer.artifact import Artifact, ArtifactError, open_artifact
from ninfer.artifact.convert.recipes import RECIPES, pack, role_of
from ninfer.artifact.convert.run import Options, Report, convert
from ninfer.faults import StartupError
from tests.artifact.hf import Tensors, hf_config, hf_tensors, write_hf
from tests.artifact.synthetic import DFLASH, configs, inventories

BF16 = ml_dtypes.bfloat16


def run(tmp_path: Path, source: Path, recipe: str = "bf16", **options: Any) -> tuple[Artifact, Report]:
    target = tmp_path / "out.ninfer"
    report = convert(Options(source, target, recipe, **options))
    return open_artifact(target), report


def tiny(tmp_path: Path, sparse: bool = False, **options: Any) -> tuple[Artifact, Report, Tensors]:
    config = hf_config(sparse)
    tensors = hf_tensors(config)
    source = write_hf(tmp_path / "hf", tensors, config)
    return *run(tmp_path, source, **options), tensors


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


@pytest.mark.parametrize("sparse", [False, True])
def test_every_parameter_is_there_in_its_shape(tmp_path: Path, sparse: bool) -> None:
    artifact, report, _ = tiny(tmp_path, sparse)
    with artifact:
        artifact.require(["text", "mtp", "vision"])
        assert report.components == ("text", "mtp", "vision")
        assert artifact.formats() == {"bf16", "fp32"}
        assert artifact.name == report.name == "hf"


def test_query_and_gate_rows_alternate_head_by_head_in_the_source(tmp_path: Path) -> None:
    artifact, _, tensors = tiny(tmp_path)
    with artifact:
        for layer, prefix in (
            ("text/layers/1", "model.language_model.layers.1"),
            ("mtp/layers/0", "mtp.layers.0"),
        ):
            heads = wide(tensors[f"{prefix}.self_attn.q_proj.weight"]).reshape(4, 2, 32, 64)
            assert (artifact.decode(f"{layer}/attention/query") == heads[:, 0].reshape(128, 64)).all()
            assert (artifact.decode(f"{layer}/attention/gate") == heads[:, 1].reshape(128, 64)).all()


def test_delta_net_parameters_come_from_their_rows(tmp_path: Path) -> None:
    artifact, _, tensors = tiny(tmp_path)
    p, g = "model.language_model.layers.0.linear_attn.", "text/layers/0/gdn/"
    with artifact:
        fused = wide(tensors[f"{p}in_proj_qkv.weight"])
        assert (artifact.decode(f"{g}query") == fused[:64]).all()
        assert (artifact.decode(f"{g}key") == fused[64:128]).all()
        assert (artifact.decode(f"{g}value") == fused[128:]).all()
        assert (artifact.decode(f"{g}convolution") == wide(tensors[f"{p}conv1d.weight"])[:, 0, :].T).all()
        assert (artifact.decode(f"{g}b_projection") == wide(tensors[f"{p}in_proj_b.weight"])).all()
        for ours, theirs in (("a_log", "A_log"), ("dt_bias", "dt_bias")):
            assert artifact.parameter(f"{g}{ours}").parts[0].object.format == "fp32"
            assert (artifact.decode(f"{g}{ours}") == wide(tensors[f"{p}{theirs}"])).all()


def test_experts_come_from_the_fused_tensors(tmp_path: Path) -> None:
    artifact, _, tensors = tiny(tmp_path, sparse=True)
    p = "model.language_model.layers.1.mlp."
    with artifact:
        gate_up, down = wide(tensors[f"{p}experts.gate_up_proj"]), wide(tensors[f"{p}experts.down_proj"])
        for e in range(4):
            below = f"text/layers/1/moe/experts/{e}"
            assert (artifact.decode(f"{below}/gate") == gate_up[e, :64]).all()
            assert (artifact.decode(f"{below}/up") == gate_up[e, 64:]).all()
            assert (artifact.decode(f"{below}/down") == down[e]).all()
        score = wide(tensors[f"{p}shared_expert_gate.weight"])
        assert (artifact.decode("text/layers/1/moe/shared_score") == score).all()


def test_vision_parameters_come_from_their_rows(tmp_path: Path) -> None:
    artifact, _, tensors = tiny(tmp_path)
    with artifact:
        patch = wide(tensors["model.visual.patch_embed.proj.weight"])
        assert (artifact.decode("vision/patch_embedding") == patch.reshape(32, -1)).all()
        for leaf, suffix in (("weight", ""), ("bias", "_bias")):
            fused = wide(tensors[f"model.visual.blocks.0.attn.qkv.{leaf}"])
            for n, name in enumerate(("query", "key", "value")):
                found = artifact.decode(f"vision/layers/0/attention/{name}{suffix}")
                assert (found == fused[32 * n : 32 * (n + 1)]).all()


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_and_a_single_file_convert_alike(tmp_path: Path, shards: int) -> None:
    config = hf_config()
    tensors = hf_tensors(config)
    one, _ = run(tmp_path, write_hf(tmp_path / "one", tensors, config))
    first = {name: one.decode(name) for name in one.parameters()}
    many, _ = run(tmp_path, write_hf(tmp_path / "many", tensors, config, shards))
    assert all((many.decode(name) == values).all() for name, values in first.items())


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["float16", "float32"])
def test_other_source_types_round_to_the_chosen_format(tmp_path: Path, dtype: Any) -> None:
    config = hf_config()
    tensors = hf_tensors(config, dtype)
    artifact, _ = run(tmp_path, write_hf(tmp_path / "hf", tensors, config))
    expected = wide(tensors["lm_head.weight"].astype(np.float32).astype(BF16))
    assert (artifact.decode("text/output_head") == expected).all()


# Recipes


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_keeps_values_within_its_precision(tmp_path: Path, recipe: str, sparse: bool) -> None:
    artifact, _, _ = tiny(tmp_path, sparse, recipe=recipe, proposal_rows=16)
    plain, _, _ = tiny(tmp_path, sparse)
    limit = {"bf16": 0, "q8": 0.005, "fp8": 0.07, "groupwise": 0.09, "nvfp4": 0.2}[recipe]
    artifact.require(["text", "mtp", "vision", "proposal"])
    for name in plain.parameters():
        exact = plain.decode(name)
        error = np.abs(artifact.decode(name) - exact).max() / np.abs(exact).max()
        assert error <= limit, name


def formats_by_role(artifact: Artifact) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in artifact.parameters():
        form = artifact.parameter(name).parts[0].object.format
        found.setdefault(role_of(name), set()).add(form)
    return found


def test_groupwise_gives_roles_their_bits(tmp_path: Path) -> None:
    artifact, _, _ = tiny(tmp_path, recipe="groupwise", proposal_rows=16)
    found = formats_by_role(artifact)
    assert found["mixer_in"] == found["mlp_in"] == {"q4_g64_fp16"}
    assert found["mixer_out"] == found["mlp_out"] == {"q5_g64_fp16"}
    assert found["embedding"] == found["head"] == found["draft"] == {"q8_g32_fp16"}
    assert found["proposal"] == {"q4_g64_fp16"}
    assert found["plain"] == {"bf16"}
    assert found["control"] == {"fp32"}


def test_groupwise_keeps_attention_of_a_sparse_model_in_eight_bits(tmp_path: Path) -> None:
    artifact, _, _ = tiny(tmp_path, True, recipe="groupwise")
    found = formats_by_role(artifact)
    assert found["mixer_in"] == found["mixer_out"] == found["shared"] == {"q8_g32_fp16"}
    assert found["expert_in"] == {"q4_g64_fp16"}
    assert found["expert_out"] == {"q5_g64_fp16"}
    assert found["head"] == {"q6_g64_fp16"}


def test_a_matrix_that_does_not_fit_falls_back_to_eight_bits_and_is_reported(tmp_path: Path) -> None:
    artifact, report, _ = tiny(tmp_path, recipe="nvfp4")
    assert "nvfp4" in artifact.formats()
    for name in artifact.parameters():
        rows, columns = (*artifact.parameter(name).shape, 1)[:2]
        form = artifact.parameter(name).parts[0].object.format
        fits = rows % 128 == 0 and columns % 64 == 0
        if name.startswith("text/layers/") and form in ("nvfp4", "q8_g32_fp16"):
            assert form == ("nvfp4" if fits else "q8_g32_fp16"), name
            assert (name in report.fallbacks) == (not fits), name
    assert report.fallbacks["vision/layers/0/attention/query"] == "q4_g64_fp16 needs columns in 64s, not 32"


def test_parameters_of_one_format_share_a_parent_others_are_split(tmp_path: Path) -> None:
    objects: dict[str, set[str]] = {}
    for recipe in ("q8", "groupwise"):
        artifact, _, _ = tiny(tmp_path, recipe=recipe)
        objects[recipe] = set(artifact.manifest.objects)
    assert "text/layers/1/attention/query_key_gate_value" in objects["q8"]
    assert {"text/layers/1/attention/query_key", "text/layers/1/attention/gate_value"} <= objects[
        "groupwise"
    ]
    assert "text/layers/0/gdn/query_key_value_z" in objects["q8"]
    assert {"text/layers/0/gdn/query_key", "text/layers/0/gdn/value_z"} <= objects["groupwise"]
    assert "text/layers/0/gdn/a_projection_b_projection" in objects["q8"]
    assert "text/layers/0/mlp/gate_up" in objects["groupwise"]


def test_experts_share_two_parents_a_layer(tmp_path: Path) -> None:
    artifact, _, _ = tiny(tmp_path, True, recipe="groupwise")
    ids = [
        name for name in artifact.manifest.objects if "/layers/0/moe/" in name and name.startswith("text")
    ]
    assert sorted(name.partition("/moe/")[2] for name in ids) == [
        "experts/down",
        "experts/gate_up",
        "router_shared_score",
        "shared/down",
        "shared/gate_up",
    ]


def test_packing_halves_a_group_until_formats_agree() -> None:
    forms = {"a": 1, "b": 1, "c": 2, "d": 3}
    assert pack("abcd", lambda name: str(forms[name])) == [("a", "b"), ("c",), ("d",)]


def test_every_parameter_name_has_a_role() -> None:
    for known in inventories(configs(sparse=True)).values():
        assert all(role_of(name) for name in known.names())


# What a checkpoint may be


def test_a_checkpoint_without_mtp_and_vision_gives_text_alone(tmp_path: Path) -> None:
    config = hf_config()
    tensors = {
        name: values
        for name, values in hf_tensors(config).items()
        if not name.startswith(("mtp.", "model.visual."))
    }
    artifact, report = run(tmp_path, write_hf(tmp_path / "hf", tensors, config))
    assert report.components == ("text",)
    assert set(artifact.components) == {"text"}


def test_a_text_only_checkpoint_has_its_config_and_tensors_one_level_up(tmp_path: Path) -> None:
    nested = hf_config()
    config = {**nested["text_config"], "tie_word_embeddings": False}
    tensors = {
        name.replace("model.language_model.", "model."): values
        for name, values in hf_tensors(nested).items()
        if not name.startswith("model.visual.")
    }
    artifact, report = run(tmp_path, write_hf(tmp_path / "hf", tensors, config))
    artifact.require(["text", "mtp"])
    assert report.components == ("text", "mtp")


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    config = {**hf_config(), "tie_word_embeddings": True}
    tensors = hf_tensors(config)
    del tensors["lm_head.weight"]
    artifact, _ = run(tmp_path, write_hf(tmp_path / "hf", tensors, config), proposal_rows=8)
    artifact.require(["text", "proposal"])
    head, table = artifact.parameter("text/output_head"), artifact.parameter("text/token_embedding")
    assert head.parts == table.parts
    assert artifact.text_config.tied_embeddings


def test_a_template_inside_the_tokenizer_config_is_found(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "hf", hf_tensors(hf_config()), hf_config())
    (source / "chat_template.jinja").unlink()
    (source / "tokenizer_config.json").write_text('{"chat_template": "inner"}')
    artifact, _ = run(tmp_path, source)
    assert artifact.resource("chat_template.jinja") == b"inner"


def test_older_configs_spread_their_rotary_settings(tmp_path: Path) -> None:
    config = hf_config()
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    del text["layer_types"]
    text |= {"full_attention_interval": 2, "rope_theta": 1e7, "partial_rotary_factor": 0.5}
    text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    artifact, _ = run(tmp_path, write_hf(tmp_path / "hf", hf_tensors(hf_config()), config))
    assert artifact.text_config.rotary_dims == 16
    assert artifact.text_config.layer_kinds == ("linear_attention", "full_attention")


@pytest.mark.parametrize(
    "role", ["tokenizer.json", "generation_config.json", "video_preprocessor_config.json"]
)
def test_an_absent_frontend_file_is_named(tmp_path: Path, role: str) -> None:
    source = write_hf(tmp_path / "hf", hf_tensors(hf_config()), hf_config())
    (source / role).unlink()
    with pytest.raises(ArtifactError, match=role):
        run(tmp_path, source)


# Drafting


def test_the_drafting_head_holds_added_tokens_then_the_lowest_ids(tmp_path: Path) -> None:
    artifact, _, tensors = tiny(tmp_path, proposal_rows=10)
    artifact.require(["proposal"])
    ids = artifact.decode("proposal/token_ids")
    assert ids.tolist() == [*range(8), 120, 121]
    assert (artifact.decode("proposal/head") == wide(tensors["lm_head.weight"])[ids]).all()


def test_the_drafting_head_follows_a_list_of_ids(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("100 7\n\n8\t9 127")
    artifact, _, tensors = tiny(tmp_path, proposal_rows=5, proposal_ids=tmp_path / "ids")
    ids = artifact.decode("proposal/token_ids")
    assert ids.tolist() == [7, 8, 9, 100, 127]
    assert (artifact.decode("proposal/head") == wide(tensors["lm_head.weight"])[ids]).all()


@pytest.mark.parametrize(
    "text", ["", "1 2", "1 2 2", "1 2 128", "1 2 -3", "1 2 x", "1 2 3 4", "1 2 99999999999"]
)
def test_a_bad_list_of_ids_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ids").write_text(text)
    with pytest.raises(StartupError, match="3 different token ids below 128"):
        tiny(tmp_path, proposal_rows=3, proposal_ids=tmp_path / "ids")


@pytest.mark.parametrize("rows", [0, -1, 129])
def test_a_drafting_head_is_no_larger_than_the_vocabulary(tmp_path: Path, rows: int) -> None:
    with pytest.raises(StartupError, match="1 to 128 rows"):
        tiny(tmp_path, proposal_rows=rows)


def dflash_tensors() -> Tensors:
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (64, 128),
        "hidden_norm.weight": (64,),
        "norm.weight": (64,),
    }
    for n in range(2):
        p = f"layers.{n}."
        shapes |= {f"{p}input_layernorm.weight": (64,), f"{p}post_attention_layernorm.weight": (64,)}
        shapes |= {f"{p}self_attn.q_proj.weight": (64, 64), f"{p}self_attn.o_proj.weight": (64, 64)}
        shapes |= {f"{p}self_attn.{name}_proj.weight": (32, 64) for name in "kv"}
        shapes |= {f"{p}self_attn.{name}_norm.weight": (32,) for name in "qk"}
        shapes |= {f"{p}mlp.{name}_proj.weight": (64, 64) for name in ("gate", "up", "down")}
    return {name: rng.standard_normal(shape).astype(BF16) for name, shape in shapes.items()}


def test_a_block_drafter_joins_as_a_component(tmp_path: Path) -> None:
    config = {key: value for key, value in DFLASH.items() if key != "rope_parameters"}
    drafter = write_hf(tmp_path / "draft", dflash_tensors(), {**config, "rope_theta": 1e7})
    artifact, report, _ = tiny(tmp_path, dflash=drafter)
    artifact.require(["text", "dflash"])
    assert report.components[-1] == "dflash"
    assert artifact.components["dflash"].target == "text"
    assert artifact.draft_config("dflash").layer_windows == (32, None)
    for name in ("key", "value"):
        own = artifact.parameter(f"dflash/layers/1/attention/{name}")
        assert artifact.parameter(f"dflash/layers/1/attention/context_{name}").parts == own.parts


def test_a_drafter_for_another_target_is_refused(tmp_path: Path) -> None:
    config = {**DFLASH, "dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 127}}
    drafter = write_hf(tmp_path / "draft", dflash_tensors(), config)
    with pytest.raises(StartupError, match="target_layer_ids"):
        tiny(tmp_path, dflash=drafter)
