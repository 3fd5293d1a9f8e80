"""Privacy ledger: the spending of a data set's budget, durable before anything leaves the site."""
