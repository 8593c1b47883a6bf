"""A logits processor that hangs under load; vLLM loads it by name (`--logits-processors stuck_processors:UnderLoad`).

It stands for what hangs in real life: a collective that waits for a lost rank, a kernel that never returns.
"""

import time

from vllm.v1.sample.logits_processor import LogitsProcessor


class UnderLoad(LogitsProcessor):
    """Answers the first requests, so that the server is healthy and passes a probe, and then none any more."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.requests = 0

    def is_argmax_invariant(self):
        return False  # or greedy sampling would leave it out

    def update_state(self, batch_update):
        if batch_update is not None:
            self.requests += len(batch_update.added)

    def apply(self, logits):
        while self.requests > 3:
            time.sleep(60)
        return logits
