"""The ``server_start`` event: everything that was settled when the server began, in one JSONL line.

Owns the names of its members, and the words of the record that says where it computes.  The one thing a
reader would get wrong: the key never gets here; ``argv`` was redacted when the options were read, and only
whether there is a key is told.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from ninfer.artifact import Artifact
from ninfer.artifact.manifest import ResourceObject
from ninfer.engine.device import Geometry
from ninfer.engine.stats import Statistics
from ninfer.observe.records import size
from ninfer.presets import Preset
from ninfer.runtime.inventory import Inventory
from ninfer.settings import ContextCosts, EngineOptions, SamplingValues
from ninfer.startup import ServeOptions

Members = dict[str, object]
DRIVER = Path("/proc/driver/nvidia/version")
KV_NAMES = {"int8": "int8-group64", "fp8": "fp8-e4m3-row256"}  # else the option's own word


@attrs.frozen
class Started:
    """What is known once the device is there."""

    options: ServeOptions
    artifact: Artifact
    inventory: Inventory
    geometry: Geometry
    stats: Statistics
    preset: Preset
    public_id: str

    def members(self) -> Members:
        """Build the members of the event."""
        return {
            "server": self._server(),
            "artifact": self._artifact(),
            "engine": self._engine(),
            "sampling_defaults": self._sampling(),
            "memory": self._memory(),
            "environment": environment(self.inventory),
            "argv": list(self.options.argv),
        }

    def _server(self) -> Members:
        options, defaults = self.options, self.options.defaults
        return {
            "public_model_id": self.public_id,
            "host": options.host,
            "port": options.port,
            "dialect": options.dialect,
            "request_log_jsonl": None if options.request_log is None else str(options.request_log),
            "log_level": options.log_level,
            "api_key_configured": options.api_key is not None,
            "cors_enabled": options.cors,
            "max_request_bytes": options.wire.body_bytes,
            "max_connections": options.wire.connections,
            "max_pending_requests": options.engine.max_pending,
            "pending_timeout_ms": int(options.engine.pending_timeout * 1000),
            "default_output_tokens": defaults.max_tokens,
            "default_thinking_budget": defaults.thinking_budget,
            "default_enable_thinking": defaults.enable_thinking,
            "default_preserve_thinking": defaults.preserve_thinking,
            "exit_on_engine_failure": options.exit_on_engine_failure,
        }

    def _artifact(self) -> Members:
        artifact, inventory = self.artifact, self.inventory
        objects = artifact.manifest.objects.values()
        resources = sum(isinstance(item, ResourceObject) for item in objects)
        return {
            "path": str(artifact.path),
            "version": artifact.version,
            "size_bytes": artifact.size_bytes,
            "name": artifact.name,
            "architecture": artifact.architecture,
            "components": sorted(artifact.components),
            "formats": sorted(artifact.formats()),
            "tensor_objects": len(objects) - resources,
            "resource_objects": resources,
            "bytes_read": artifact.bytes_read,
            "host_to_device_bytes": inventory.uploaded,
            "peak_staging_bytes": inventory.peak_staging,
            "load_seconds": inventory.load_seconds,
            "upload_seconds": inventory.upload_seconds,
        }

    def _engine(self) -> Members:
        engine, geometry, disk = self.options.engine, self.geometry, self.options.contexts
        gpu = self.inventory.gpu
        return {
            "device": None if gpu is None else gpu.index,
            "max_context": geometry.max_context,
            "kv_capacity": geometry.pages * geometry.page_tokens,
            "kv_capacity_mode": _capacity_mode(engine),
            "kv_capacity_page_groups": geometry.pages,
            "kv_capacity_max_page_groups": geometry.lanes
            * -(-geometry.max_context // geometry.page_tokens),
            "page_tokens": geometry.page_tokens,
            "max_concurrency": geometry.lanes,
            "prefill_chunk": geometry.prefill_chunk,
            "log_stats_interval_ms": int(self.options.stats_interval * 1000),
            "kv_cache": KV_NAMES.get(engine.kv_dtype, engine.kv_dtype),
            "vision": engine.vision,
            "cuda_graph": gpu is not None and engine.cuda_graphs,
            "prefix_reuse": engine.prefix_reuse,
            "speculative_backend": engine.spec,
            "speculative_draft_window": geometry.drafts,
            "proposal_head": _proposal_head(engine),
            "context_cost": context_cost(engine.costs, self.options),
            "context_cache": {
                "device_state_slots": geometry.slots - geometry.lanes,
                "total_device_state_slots": geometry.slots,
                "host_capacity_bytes": geometry.host_bytes,
                "disk_capacity_bytes": disk.bytes if disk.folder else 0,
            },
        }

    def _sampling(self) -> Members:
        overrides = attrs.asdict(self.options.sampling)
        renamed = {_LONG.get(name, name): value for name, value in overrides.items()}
        return {
            "thinking": _values(self.preset.thinking),
            "non_thinking": _values(self.preset.plain),
            "server_overrides": renamed,
        }

    def _memory(self) -> Members:
        held, geometry, host = self.inventory, self.geometry, self.stats.host
        return {
            "weights": held.weights,
            "sequence": held.sequence,
            "workspace": {"capacity_bytes": held.workspace},
            "vision_workspace": None,
            "cuda_graph_allowance_bytes": held.graphs,
            "runtime_reservation_bytes": held.reserved,
            "minimum_runtime_reservation_bytes": held.least_reserved,
            "kv_capacity_increment_bytes": held.kv_increment,
            "available_after_weights_bytes": held.free_after_weights,
            "available_after_startup_bytes": held.free_after_start,
            "kv_capacity_headroom_bytes": held.headroom,
            "planned_slack_bytes": held.slack,
            "kv_payload_bytes": geometry.pages * geometry.page_bytes,
            "state_image_bytes": geometry.image_bytes,
            "host_context_capacity_bytes": host.capacity,
            "host_context_occupied_bytes": host.used,
            "host_context_reserved_bytes": host.reserved,
            "host_state_occupied_slots": host.images,
            "host_kv_occupied_bytes": host.kv,
        }


_LONG = {"presence": "presence_penalty", "frequency": "frequency_penalty"}


def _values(values: SamplingValues) -> Members:
    return {_LONG.get(name, name): value for name, value in attrs.asdict(values).items()}


def _proposal_head(engine: EngineOptions) -> str | None:
    if engine.spec is None:
        return None
    return "optimized" if engine.proposal_head else "full"


def context_cost(costs: ContextCosts, options: ServeOptions) -> Members:
    """Say which measured costs decide between copying and recomputing, and where they come from."""
    generic = ContextCosts()
    transfer = (costs.transfer_seconds, costs.transfer_bytes_per_second)
    prefill = (costs.prefill_token_seconds, costs.prefill_pair_seconds)
    same = (generic.transfer_seconds, generic.transfer_bytes_per_second)
    path = options.context_costs
    return {
        "transfer_source": "external" if path and transfer != same else "generic",
        "prefill_source": "external"
        if path and prefill != (generic.prefill_token_seconds, generic.prefill_pair_seconds)
        else "generic",
        "disk_source": "external"
        if path and costs.disk_bytes_per_second != generic.disk_bytes_per_second
        else "generic",
        "hardware_class": None,
        "prefill_signature": None,
        "preset_path": None if path is None else str(path),
        **attrs.asdict(costs),
    }


def _capacity_mode(engine: EngineOptions) -> str:
    if engine.kv_auto:
        return "auto"
    return "context" if engine.kv_capacity is None else "explicit"


def place(inventory: Inventory) -> str:
    """Describe for a record where it computes, and what went where."""
    where = inventory.gpu.name if inventory.gpu else f"{inventory.backend} on the CPU"
    parts = {"weights": inventory.weights, "states and cache": inventory.sequence}
    if inventory.gpu:
        parts |= {"workspace": inventory.workspace, "free": inventory.free_after_start or 0}
    return " | ".join((where, *(f"{name} {size(nbytes)}" for name, nbytes in parts.items())))


def overlooked(inventory: Inventory, backend: str, driver: Path = DRIVER) -> str | None:
    """Say that a card may be here which nobody asked not to use; None where there is nothing to say."""
    if inventory.gpu or backend != "auto" or not driver.exists():
        return None
    return (
        "an NVIDIA driver is here, but no GPU is used: --backend cuda says what is missing, "
        "--backend numpy that none is wanted"
    )


def environment(inventory: Inventory) -> Members:
    """Say where it runs; every member of a card is null without one."""
    gpu = inventory.gpu
    major, minor = gpu.compute_capability if gpu else (None, None)
    return {
        "backend": inventory.backend,
        "device": None if gpu is None else gpu.index,
        "gpu_name": gpu and gpu.name,
        "gpu_uuid": gpu and gpu.uuid,
        "total_device_memory_bytes": gpu and gpu.total_bytes,
        "compute_capability_major": major,
        "compute_capability_minor": minor,
        "cuda_compile_version": gpu and gpu.compile_version,
        "cuda_runtime_version": gpu and gpu.runtime_version,
        "cuda_driver_version": gpu and gpu.driver_version,
    }
