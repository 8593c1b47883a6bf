"""A parser plugin that vLLM never gets past (`--tool-parser-plugin`): a start that says nothing more and never ends."""

import time

while True:
    time.sleep(60)
