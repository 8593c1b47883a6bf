"""An interpreter whose vLLM is another one than the shipped table's, as far as our probe looks at it."""

from __future__ import annotations

import json
from pathlib import Path

from autotune.space.arguments import bundled_table


def other_vllm(folder: Path) -> Path:
    """vLLM 0.26.0 in `folder`: it has swap_space still, and no max_num_seqs. Needs `$AUTOTUNE_STATE` of its own."""
    table = json.loads(bundled_table().to_json())
    rows = [row for row in table["arguments"] if row["name"] != "max_num_seqs"]
    rows.append({"name": "swap_space", "flags": ["--swap-space"], "kind": "value", "type": "float"})
    (folder / "arguments.json").write_text(json.dumps({**table, "version": "0.26.0", "arguments": rows}))
    (folder / "venv/lib/python3.11/site-packages/vllm-0.26.0.dist-info").mkdir(parents=True)
    python = folder / "venv/bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nif [ "$2" = version ]; then echo 0.26.0; else cp {folder}/arguments.json "$3"; fi\n')
    python.chmod(0o755)
    return python
