"""The examples in `deploy/`, read by no code of the project."""

import re
from functools import cache

import yaml

from tests.support.databases import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
MANIFESTS = DEPLOY / "kubernetes"
UNITS = sorted((DEPLOY / "systemd").iterdir())


@cache
def kustomization() -> dict:
    return yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())


@cache
def resources(kind: str = "") -> list[dict]:
    found = [
        part for name in kustomization()["resources"] for part in yaml.safe_load_all((MANIFESTS / name).read_text())
    ]
    return [part for part in found if kind in ("", part["kind"])]


def containers() -> list[dict]:
    return [each for part in resources("Deployment") for each in part["spec"]["template"]["spec"]["containers"]]


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: name and arguments."""
    return re.findall(r"^([A-Z]+) (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
