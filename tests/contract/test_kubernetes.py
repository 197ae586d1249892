"""deploy/kubernetes is what Kubernetes' API accepts, and what our own settings accept.

Nothing here runs on a cluster.
"""

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from auth_service.config import Config as AuthConfig
from edge.config import Config as EdgeConfig
from fastrun.service import config
from gpu_worker.config import Config as WorkerConfig
from scheduler.config import Config as SchedulerConfig

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
PAGE = Path(__file__).parents[2] / "docs" / "operating" / "kubernetes.md"
# What is looked for: the API as it is now, and the oldest that knows all of our fields.
VERSIONS = ("1.37", "1.30")
CONFIGS = {
    "auth": AuthConfig,
    "scheduler": SchedulerConfig,
    "edge": EdgeConfig,
    "worker": WorkerConfig,
}
# Of what `kubectl apply -k` accepts, what we use: Kustomization is in no API schema.
KUSTOMIZATION = {"apiVersion", "kind", "namespace", "resources", "labels", "images"}


def kustomization():
    return yaml.safe_load((FOLDER / "kustomization.yaml").read_text())


def documents():
    """Every document of every file, each with its file's name."""
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            for document in yaml.safe_load_all(path.read_text()):
                yield path.name, document


def ids():
    return [f"{name}:{each['kind']}/{each['metadata']['name']}" for name, each in documents()]


def found(kind):
    return {each["metadata"]["name"]: each for _, each in documents() if each["kind"] == kind}


def workloads():
    """The pod templates of all that runs, by name."""
    return {
        name: each["spec"]["template"]
        for kind in ("Deployment", "StatefulSet")
        for name, each in found(kind).items()
    }


def container(template):
    (only,) = template["spec"]["containers"]
    return only


def environment(template):
    return {each["name"]: each for each in container(template)["env"]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", [each for _, each in documents()], ids=ids())
def test_every_manifest_fits_the_api(document, version):
    """Kubernetes' own schemas find nothing wrong, and no field that they do not know."""
    validate = pytest.importorskip("kubernetes_validate").validate

    validate(document, version, strict=True)


def test_a_field_that_does_not_exist_is_found():
    """The schemas are read strictly: what is misspelled anywhere is refused."""
    validator = pytest.importorskip("kubernetes_validate")
    deployment = found("Deployment")["auth"]
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    probe["periodSecond"] = 1

    with pytest.raises(validator.ValidationError, match="periodSecond"):
        validator.validate(deployment, VERSIONS[0], strict=True)


def test_kustomize_takes_every_file():
    """What lies in the folder is what is applied, by fields that kustomize has."""
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}

    assert set(kustomization()["resources"]) == files
    assert set(kustomization()) <= KUSTOMIZATION
    images = {
        each["image"]
        for template in workloads().values()
        for kind in ("containers", "initContainers")
        for each in template["spec"].get(kind, ())
    }
    assert {each["name"] for each in kustomization()["images"]} == images


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kustomize_renders():
    """Where there is a kubectl, it makes the same number of objects of them."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    rendered = [each["kind"] for each in yaml.safe_load_all(done.stdout)]
    assert sorted(rendered) == sorted(each["kind"] for _, each in documents())


SECRETS = {"DATABASE_URL": "postgresql://fastrun:secret@postgres/fastrun"}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_is_one_of_its_service(name):
    """The environment of each service loads into that service's Config."""
    environ = {
        key: each.get("value", SECRETS.get(key, "ab" * 32))
        for key, each in environment(workloads()[name]).items()
        if key.startswith(("FASTRUN_", "DATABASE_"))
    }
    loaded = config.load(CONFIGS[name], name, environ)

    ports = {each["name"]: each["containerPort"] for each in container(workloads()[name])["ports"]}
    assert ports["http" if name == "edge" else "grpc"] == int(loaded.listen.rpartition(":")[2])
    assert ports["admin"] == int(loaded.admin_listen.rpartition(":")[2])


def test_every_scheduler_is_known_by_name():
    """Edges and workers have a session with each scheduler that there is."""
    scheduler = found("StatefulSet")["scheduler"]["spec"]
    names = [
        f"scheduler-{number}.{scheduler['serviceName']}:7002"
        for number in range(scheduler["replicas"])
    ]
    for name in ("edge", "worker"):
        told = environment(workloads()[name])[f"FASTRUN_{name.upper()}_SCHEDULER_ADDRESSES"]
        assert told["value"].split(",") == names
    assert len(names) == 2
    assert found("Service")["scheduler"]["spec"]["publishNotReadyAddresses"] is True


def test_every_service_is_watched():
    """Each has the three probes, on the port of its health, and a budget for disruptions."""
    for name, template in workloads().items():
        for probe, paths in (
            ("startupProbe", {"/healthz", "/readyz"}),
            ("livenessProbe", {"/healthz"}),
            ("readinessProbe", {"/readyz"}),
        ):
            get = container(template)[probe]["httpGet"]
            assert (get["port"], get["path"] in paths) == ("admin", True), (name, probe)
    assert set(found("PodDisruptionBudget")) == set(workloads())


def test_nobody_is_killed_while_it_drains():
    """Kubernetes waits for longer than a service takes to end what runs."""
    for name, template in workloads().items():
        settings = environment(template)
        variable = f"FASTRUN_{name.upper()}_GRACE_S"
        fields = msgspec.structs.fields(CONFIGS[name])
        default = next(field.default for field in fields if field.name == "grace_s")
        grace_s = float(settings[variable]["value"]) if variable in settings else default
        hook = container(template).get("lifecycle", {}).get("preStop", {})
        paused_s = hook.get("sleep", {}).get("seconds", 0)
        allowed = template["spec"]["terminationGracePeriodSeconds"]
        assert allowed >= grace_s + paused_s, name
    worker = environment(workloads()["worker"])
    assert float(worker["FASTRUN_WORKER_GRACE_S"]["value"]) > float(
        worker["FASTRUN_WORKER_DRAIN_S"]["value"]
    )


def test_selectors_find_what_they_are_for():
    """Each selector is that of the pods whose name it has, or says in a policy."""
    labels = {name: template["metadata"]["labels"] for name, template in workloads().items()}
    for kind in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
        for name, each in found(kind).items():
            assert each["spec"]["selector"]["matchLabels"] == labels[name], (kind, name)
    known = [set(each.items()) for each in labels.values()]
    for name, each in found("Service").items():
        assert set(each["spec"]["selector"].items()) in known, name
    for name, each in found("StatefulSet").items():
        governing = found("Service")[each["spec"]["serviceName"]]["spec"]
        assert governing["clusterIP"] == "None", name


def test_no_pod_may_more_than_it_needs():
    """No root, no new rights, no token of the cluster's API, and a root that is not written to."""
    for name, template in workloads().items():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for each in (*pod["containers"], *pod.get("initContainers", ())):
            context = each["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            # The engine of GPU workers writes beside itself.
            assert context.get("readOnlyRootFilesystem", name == "worker") is True, name


def test_a_worker_has_a_gpu():
    """Each worker asks for one GPU, and tells the schedulers its own pod's address."""
    worker = workloads()["worker"]
    assert container(worker)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    told = environment(worker)
    assert told["FASTRUN_WORKER_ADVERTISE_ADDRESS"]["value"] == "$(POD_IP):7003"
    # Kubernetes replaces $(POD_IP) by what stands before it only.
    assert list(told).index("POD_IP") < list(told).index("FASTRUN_WORKER_ADVERTISE_ADDRESS")


def test_the_page_says_how_every_secret_is_made():
    """No secret is in the repository, and the page has a command for each that is needed."""
    assert not found("Secret")
    text = "".join(path.read_text() for path in FOLDER.glob("*.yaml"))
    needed = set(re.findall(r"secretName: ([\w-]+)|secretKeyRef: \{name: ([\w-]+)", text))
    page = PAGE.read_text()
    for name in {each for pair in needed for each in pair if each}:
        role = re.fullmatch(r"fastrun-(\w+)-certs", name)
        assert (name in page) or (role and "fastrun-$role-certs" in page and role[1] in page), name
