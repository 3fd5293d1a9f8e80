"""Layout of summed vectors, and the noise in them."""
