"""Ends tasks as Spark does when it does not need them any more."""

import threading


class Killer:
    """Kills two running tasks."""

    def __init__(self, spark, after_s):
        self._spark, self._after_s, self.killed = spark, after_s, set()
        self._done, self._thread = threading.Event(), threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._done.set()
        self._thread.join()

    def _run(self):
        context = self._spark.sparkContext
        jvm = context._jsc.sc()
        while not self._done.wait(self._after_s) and len(self.killed) < 2:
            for stage in context.statusTracker().getActiveStageIds():
                tasks = jvm.statusStore().taskList(stage, 0, 100)
                for task in [tasks.apply(number) for number in range(tasks.size())]:
                    if task.status() == "RUNNING" and len(self.killed) < 2 and task.taskId() not in self.killed:
                        self.killed.add(task.taskId())
                        jvm.killTaskAttempt(task.taskId(), True, "a test")
