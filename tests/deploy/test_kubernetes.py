"""The manifests are valid, belong together, and start commands that exist."""

import shlex

import kubernetes_validate
import pytest

from tests.deploy.files import MANIFESTS, containers, instructions, kustomization, resources
from tests.document_blocks.shell import judge

VERSIONS = ("1.30", kubernetes_validate.latest_version())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", resources(), ids=lambda part: f"{part['kind']}-{part['metadata']['name']}")
def test_the_schemas_of_kubernetes_take_it(resource, version):
    kubernetes_validate.validate(resource, version, strict=True)


def test_the_kustomization_names_every_file_and_image():
    assert kustomization().keys() == {"apiVersion", "kind", "namespace", "resources", "images"}
    assert {*kustomization()["resources"]} == {path.name for path in MANIFESTS.iterdir()} - {"kustomization.yaml"}
    assert {each["image"] for each in containers()} == {image["name"] for image in kustomization()["images"]}


@pytest.mark.parametrize("deployment", resources("Deployment"), ids=lambda part: part["metadata"]["name"])
def test_a_deployment_is_restricted_and_probed_and_has_a_budget(deployment):
    name, pod = deployment["metadata"]["name"], deployment["spec"]["template"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    [budget] = [each for each in resources("PodDisruptionBudget") if each["metadata"]["name"] == name]
    assert deployment["spec"]["selector"]["matchLabels"] == budget["spec"]["selector"]["matchLabels"] == labels
    assert pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"] == labels
    assert pod["securityContext"]["runAsNonRoot"]
    assert (
        f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == dict(instructions())["USER"]
    )
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["resources"]["limits"].keys() == {"memory"}, "a CPU limit looks like a pause"
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert [port["name"] for port in container["ports"]] == ["metrics"]
    assert container["command"][-1] == str(container["ports"][0]["containerPort"])
    judge(shlex.join(container["command"]))
