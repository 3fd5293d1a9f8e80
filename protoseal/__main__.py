"""Entry point of ``python -m protoseal``."""

from protoseal.cli import main

if __name__ == "__main__":
    main()
