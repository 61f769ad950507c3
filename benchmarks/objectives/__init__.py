"""What objectives give: goodput, fairness and batches on the real stack, beside what was foretold."""
