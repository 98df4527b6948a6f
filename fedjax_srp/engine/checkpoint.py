"""Checkpoints of a running simulation: its state and what it has recorded so far, written together after a segment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from fedjax_srp.engine.round import SimulationState

FINGERPRINT = "fingerprint.json"
Records = dict[str, np.ndarray]  # flat, so that names, shapes and types fit a JSON file


class Checkpoints:
    """A folder of checkpoints that belongs to one simulation.

    Resuming is exact on the same devices, chunk and version of jax. The folder remembers what made it and refuses any
    other simulation.

    Args:
        directory: made if needed.
        fingerprint: JSON-able facts that a continued run must share.

    Raises:
        ValueError: the folder belongs to another simulation.
    """

    def __init__(self, directory: str | os.PathLike, fingerprint: dict[str, Any]):
        path = Path(directory).absolute()
        path.mkdir(parents=True, exist_ok=True)
        marker = path / FINGERPRINT
        fingerprint = json.loads(json.dumps(fingerprint))
        if marker.exists():
            known = json.loads(marker.read_text())
            for name, value in fingerprint.items():
                if known.get(name) != value:
                    raise ValueError(
                        f"checkpoint_dir={str(directory)!r} belongs to a run with {name}={known.get(name)!r}, this one "
                        f"has {value!r}; choose another folder or delete that one"
                    )
        elif jax.process_index() == 0:
            temporary = marker.with_suffix(".tmp")
            temporary.write_text(json.dumps(fingerprint, indent=1))
            temporary.replace(marker)
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(path, options=options)

    def save(self, num_rounds: int, state: SimulationState, records: Records) -> None:
        """Writes a snapshot after `num_rounds` rounds; a kill meanwhile leaves the one before."""
        shapes = {name: [list(array.shape), str(array.dtype)] for name, array in records.items()}
        snapshot = ocp.args.StandardSave({"state": state, "records": records})
        self._manager.save(num_rounds, args=ocp.args.Composite(snapshot=snapshot, shapes=ocp.args.JsonSave(shapes)))

    def restore(self, state: SimulationState) -> tuple[int, SimulationState, Records] | None:
        """The newest snapshot as (number of rounds, state, records), or None. `state` gives structure and placement."""
        num_rounds = self._manager.latest_step()
        if num_rounds is None:
            return None
        shapes = self._manager.restore(num_rounds, args=ocp.args.Composite(shapes=ocp.args.JsonRestore()))["shapes"]
        records = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
        target = {"state": jax.tree.map(ocp.utils.to_shape_dtype_struct, state), "records": records}
        args = ocp.args.Composite(snapshot=ocp.args.StandardRestore(target))
        snapshot = self._manager.restore(num_rounds, args=args)["snapshot"]
        return num_rounds, snapshot["state"], snapshot["records"]

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.close()
