"""Commands of ``protoseal``: one module for each command or group of commands."""
