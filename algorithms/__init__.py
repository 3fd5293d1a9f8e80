"""The methods' mathematics. Knows nothing of keys or networks."""
