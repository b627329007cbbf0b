"""One job beside Spark's own work: the streaming source purges and marks while a batch runs. It decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Beside:
    """At most one job, in a thread. Wait for it before you use what it uses. Pickles as an idle one."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __reduce__(self) -> tuple[type[Beside], tuple[()]]:
        return Beside, ()

    def begin(self, job: Callable[[], object]) -> None:
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(job,), name="outbox-spark-beside", daemon=True)
        self._thread.start()

    def _run(self, job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Wait until the job has ended, and raise its error, once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
