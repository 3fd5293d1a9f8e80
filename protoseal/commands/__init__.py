"""The commands of ``protoseal``, a module for each group."""
