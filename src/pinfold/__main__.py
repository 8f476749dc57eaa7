"""``python -m pinfold``."""

from pinfold.cli import main

if __name__ == "__main__":
    main(prog_name="pinfold")
