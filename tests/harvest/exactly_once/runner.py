"""Workers without an election in a process of their own: trusted for ever, until killed or told to end."""

import json
import os
import signal
import sys
import threading
import time
import uuid


class Host:
    def __init__(self):
        self.ended = threading.Event()

    def may_start(self, lane):
        return True

    may_send = may_start

    def doubt(self, lane):
        pass

    refresh = step_down = doubt

    def partitions_added(self):
        pass

    def finished(self, lane):
        self.ended.set()

    def emit(self, event):
        print(event, flush=True)

    def fatal(self, error):
        print("fatal", repr(error), flush=True)
        os._exit(3)


def main():
    given = json.loads(sys.argv[1])
    os.environ["DATABASE_URL"] = given["url"]
    import django

    django.setup()
    from django.conf import settings

    from outbox.conf import parse
    from outbox.harvest.exactly_once import ExactlyOnceFactory

    conf = parse({**settings.OUTBOX, **given["settings"]})
    factory, workers, over = ExactlyOnceFactory(), [], threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    for lane in given["lanes"]:
        host = Host()
        worker = factory(conf, lane, uuid.uuid4(), 1, host)
        workers.append((worker, host))
        worker.start()
    while not over.wait(0.1):
        if os.getppid() == 1:
            return
    for worker, _ in workers:
        worker.finish(time.monotonic() + 10)
    for worker, host in workers:
        host.ended.wait(12)
        worker.join(5)


if __name__ == "__main__":
    main()
