"""A site's model over the rounds: checkpoints, targets, what a round starts from."""
