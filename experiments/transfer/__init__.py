"""Fine-tuning without forgetting: the cross-domain transfer of the paper, DEFT against its baselines."""
