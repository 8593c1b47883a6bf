"""``python -m autotune.simulator serve MODEL [options of vllm serve]``."""

import os
import sys

from .serve import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
