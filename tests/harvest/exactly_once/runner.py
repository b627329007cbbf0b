"""Workers without an election in a process of their own: trusted for ever, until killed or told to end."""

import json
import os
import resource
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


def die_of(value):
    """A record of this value ends the process, as a bug in a native library would: no handler runs, nothing is said."""
    import ctypes

    from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer

    send = TransactionalProducer.send

    def send_or_die(self, rows, *arguments):
        if any(row[3] == value for row in rows):
            ctypes.string_at(0)
        return send(self, rows, *arguments)

    TransactionalProducer.send = send_or_die


def main():
    given = json.loads(sys.argv[1])
    if given["die_of"]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        die_of(given["die_of"])
    os.environ["DATABASE_URL"] = given["url"]
    import django

    django.setup()
    from django.conf import settings

    from outbox.conf import parse
    from outbox.harvest.exactly_once.lane import ExactlyOnceFactory

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
