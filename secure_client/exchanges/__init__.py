"""Methods at a site: the base that a round trains from, the values that it sends, and the use of a result."""
