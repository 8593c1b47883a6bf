"""What the quality gate catches: damaged copies of a small model, scored on the real vLLM for CPUs."""
