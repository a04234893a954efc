"""``python -m picker`` is ``serve-picker``."""

from picker.cli import main

if __name__ == "__main__":
    main()
