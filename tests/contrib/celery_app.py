"""The Celery application of the tests: a broker that is a folder, and one task that writes down what it was given."""

import json
import os
from pathlib import Path

from celery import Celery


def make(folder: Path) -> Celery:
    """An application whose broker is the folder; the task's notes go to a file in it."""
    app = Celery("outbox-tests", set_as_current=False)
    for name in ("data", "control"):
        (folder / name).mkdir(exist_ok=True)
    data = str(folder / "data")
    app.conf.update(
        broker_url="filesystem://localhost",
        broker_transport_options={
            "data_folder_in": data,
            "data_folder_out": data,
            "control_folder": str(folder / "control"),
        },
        task_default_queue="outbox-tests",
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="shop.note")
    def note(**named: object) -> None:
        with (folder / "notes").open("a") as file:
            file.write(json.dumps(named) + "\n")

    return app


app = make(Path(os.environ["NOTES_FOLDER"])) if "NOTES_FOLDER" in os.environ else None
down = Celery("down", broker=os.environ.get("BROKER_OF_TEST"), set_as_current=False)
