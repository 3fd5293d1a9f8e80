"""Results of runs as tables, figures and HTML pages."""
