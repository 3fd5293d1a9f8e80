"""Clustering algorithms: FINCH, K-means, principal components, silhouettes."""
