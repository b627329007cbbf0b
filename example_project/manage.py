"""``python example_project/manage.py COMMAND``, from anywhere."""

import os
import sys
from pathlib import Path


def main() -> None:
    # Python puts this file's folder first, where the package would not be found by its name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
