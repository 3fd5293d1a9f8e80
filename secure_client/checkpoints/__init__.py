"""Model of a site over the rounds: checkpoints, targets, and the base that a round trains from."""
