"""How each method fills a round at a site: what it trains from, what it sends, what it makes of a result."""
