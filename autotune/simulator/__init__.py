"""A stand-in for ``vllm serve``: the same arguments, routes, log lines and failures over a model of the card.

Nothing here computes a language model. A discrete-event scheduler (``scheduler.py``) batches requests as vLLM's V1
scheduler does, a roofline (``roofline.py``) says how long each step would take on the card, and an HTTP shell
(``server.py``) answers at those times. ``core.simulate`` runs the same scheduler in virtual time, without a socket.

Every figure that comes from here is simulated and says so: the version is ``0.32.0+simulated``.

Environment of the process (all optional)::

    AUTOTUNE_SIM_CARD     h100 | h200 | a100 | l4                       (h100)
    AUTOTUNE_SIM_GPUS     GPUs of the pretended host                    (1)
    AUTOTUNE_SIM_SPEED    time factor; at 20 a simulated second takes 50 ms of wall time, so what a client measures
                          must be multiplied by 20 to get simulated seconds (a rate must be divided by 20); the caller
                          does that. The event loop's timers have a grain of 1 ms, so 20 simulated ms here; output
                          tokens/s x speed should stay below about 40,000, else /metrics shows a growing
                          ``autotune_simulator_lag_seconds`` and the log warns  (1)
    AUTOTUNE_SIM_STARTUP  scale of the simulated start-up time; 0 starts at once. Divided by AUTOTUNE_SIM_SPEED  (1)
    AUTOTUNE_SIM_NOISE    sigma of the lognormal noise on step times, jitter and slow drift alike  (0.01)
    AUTOTUNE_SIM_SEED     seed of that noise                            (another at every start)
    AUTOTUNE_SIM_FAULT    faults for tests, comma separated, see ``faults.py``
    AUTOTUNE_SIM_PROCS    1 starts EngineCore and Worker child processes, which outlive a killed parent as vLLM's do
"""

VERSION = "0.32.0+simulated"
