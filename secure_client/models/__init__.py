"""Models of a site: backbones, heads, projections and pretrained weights."""
