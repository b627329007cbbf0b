"""A standalone cluster from PySpark's wheel on loopback: a master and two workers of one core each."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from outbox.spark import sessions
from tests.spark.engines import below, children, command_line, kill, processes
from tests.support.databases import ROOT

PATIENCE_S = 240
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Cluster:
    def __init__(self, folder, hosts=("127.0.0.1", "127.0.0.1")):
        self.folder, self.events = folder, folder / "events"
        self.events.mkdir()
        self._processes = []
        sessions.prepare_environment()
        self.url = self._says(
            self._launch("master.Master", "--host", "127.0.0.1", "--port", "0"), r"(spark://127\.0\.0\.1:\d+)"
        )
        logs = []
        for number, host in enumerate(hosts):
            work = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work-{number}"))
            logs.append(self._launch("worker.Worker", "--host", host, *work, self.url))
        for log in logs:
            self._says(log, "(Successfully registered)")

    def _launch(self, name, *arguments):
        """As `spark-class` would, without the JVM that it starts to find out how. Workers read Scala's version."""
        path = self.folder / f"{name}-{len(self._processes)}.log"
        program, jars = Path(os.environ["JAVA_HOME"]) / "bin" / "java", Path(os.environ["SPARK_HOME"]) / "jars" / "*"
        with path.open("w") as log:
            self._processes.append(
                subprocess.Popen(
                    [program, *JAVA.split(), "-Xmx256m", "-cp", jars, f"org.apache.spark.deploy.{name}",
                     "--webui-port", "0", *arguments],
                    env={**os.environ, "SPARK_SCALA_VERSION": "2.13"},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )  # fmt: skip
        return path

    def _says(self, path, pattern):
        give_up_at = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, path.read_text())):
            assert time.monotonic() < give_up_at, path.read_text()
            assert all(process.poll() is None for process in self._processes), path.read_text()
            time.sleep(0.05)
        return found[1]

    def config(self, **executor_environment):
        """Settings of an application on this cluster."""
        environment = {"PYTHONPATH": str(ROOT), **executor_environment}
        return (
            "spark.executor.cores=1",
            "spark.executor.memory=512m",
            f"spark.executor.extraJavaOptions={JAVA}",
            "spark.eventLog.enabled=true",
            "spark.eventLog.rolling.enabled=false",
            "spark.eventLog.compress=false",
            f"spark.eventLog.dir={self.events.as_uri()}",
            *(f"spark.executorEnv.{name}={value}" for name, value in environment.items()),
        )

    def stopped(self):
        """Python workers that a failpoint has stopped, with their executors."""
        found = processes()
        own = {pid for process in self._processes for pid in below(found, process.pid)}
        pairs = [(pid, self._executor_of(pid, found)) for pid in own if found[pid][1] == "T"]
        return [(pid, executor) for pid, executor in pairs if executor is not None]

    def _executor_of(self, pid, found):
        while pid in found:
            if "CoarseGrainedExecutorBackend" in (command_line(pid) or ""):
                return pid
            pid = found[pid][0]
        return None

    def producers(self):
        """Executors whose tasks have written slices with records, by the event logs of all applications."""
        found = set()
        for path in self.events.iterdir():
            writing = set()
            for line in path.read_text().splitlines():
                event = json.loads(line) if line.endswith("}") else {}
                if event.get("Event") == "SparkListenerStageSubmitted":
                    scopes = " ".join(str(rdd.get("Scope")) for rdd in event["Stage Info"]["RDD Info"])
                    if "MapInArrow" in scopes:
                        writing.add(event["Stage Info"]["Stage ID"])
                elif event.get("Event") == "SparkListenerTaskEnd" and event["Stage ID"] in writing:
                    read = (
                        (event.get("Task Metrics") or {}).get("Shuffle Read Metrics", {}).get("Total Records Read", 0)
                    )
                    if read > 1 and event["Task End Reason"]["Reason"] == "Success":  # one is the sentinel
                        found.add((path.name, event["Task Info"]["Executor ID"]))
        return found

    def copies(self):
        """Speculative tasks that were started."""
        return sum('"Speculative":true' in line for path in self.events.iterdir() for line in
                   path.read_text().splitlines() if "SparkListenerTaskStart" in line)  # fmt: skip

    def close(self):
        kill(*[pid for process in self._processes for pid in (process.pid, *children(process.pid))])
        for process in self._processes:
            process.wait(60)


def resume(pid):
    os.kill(pid, signal.SIGCONT)
