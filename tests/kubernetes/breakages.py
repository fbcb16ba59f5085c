"""Breaks good objects, one way at a time, to see that a check notices each."""

import copy
from collections.abc import Callable


def of_kind(objects: list[dict], kind: str, name: str) -> dict:
    return next(o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)


def controller(objects: list[dict]) -> dict:
    return of_kind(objects, "StatefulSet", "tessera-controller")


def node(objects: list[dict]) -> dict:
    return of_kind(objects, "DaemonSet", "tessera-node")


def pod(workload: dict) -> dict:
    return workload["spec"]["template"]["spec"]


def main_container(workload: dict) -> dict:
    return pod(workload)["containers"][0]


def replace_argument(container: dict, old: str, new: str) -> None:
    container["args"][container["args"].index(old)] = new


def unknown_field(o):
    main_container(node(o))["livenesProbe"] = {}


def number_as_text(o):
    controller(o)["spec"]["replicas"] = "1"


def removed_api(o):
    of_kind(o, "PodDisruptionBudget", "tessera-node")["apiVersion"] = "policy/v1beta1"


def two_alike(o):
    o.append(copy.deepcopy(node(o)))


def no_namespace(o):
    del controller(o)["metadata"]["namespace"]


def pods_without_label(o):
    del node(o)["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]


def service_of_nobody(o):
    spec = of_kind(o, "Service", "tessera-gateway")["spec"]
    spec["selector"]["app.kubernetes.io/component"] = "gateway"


def budget_of_nobody(o):
    spec = of_kind(o, "PodDisruptionBudget", "tessera-node")["spec"]
    spec["selector"]["matchLabels"]["app.kubernetes.io/component"] = "nodes"


def policy_for_nobody(o):
    rules = of_kind(o, "NetworkPolicy", "tessera-node")["spec"]["ingress"]
    rules[0]["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] = "gateway"


def service_with_other_port(o):
    of_kind(o, "Service", "tessera-gateway")["spec"]["ports"][0]["targetPort"] = "https"


def service_with_other_number(o):
    of_kind(o, "Service", "tessera-controller")["spec"]["ports"][0]["port"] = 8005


def listens_elsewhere(o):
    replace_argument(main_container(node(o)), "8001", "8011")


def controller_listens_elsewhere(o):
    replace_argument(main_container(controller(o)), "0.0.0.0:8004", "0.0.0.0:8014")


def metrics_elsewhere(o):
    node(o)["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] = "8000"


def probe_of_nothing(o):
    main_container(node(o))["livenessProbe"]["httpGet"]["path"] = "/healthz"


def probe_of_a_socket(o):
    probe = main_container(controller(o))["livenessProbe"]
    del probe["httpGet"]
    probe["tcpSocket"] = {"port": "control"}


def probe_without_tls(o):
    main_container(node(o))["readinessProbe"]["httpGet"]["scheme"] = "HTTP"


def no_readiness(o):
    del main_container(controller(o))["readinessProbe"]


def image_without_tag(o):
    main_container(node(o))["image"] = "registry.example:5000/tessera"


def runs_as_root(o):
    pod(node(o))["securityContext"]["runAsNonRoot"] = False


def keeps_capabilities(o):
    main_container(controller(o))["securityContext"]["capabilities"]["drop"] = ["NET_RAW"]


def no_account(o):
    pod(node(o))["serviceAccountName"] = "default"


def no_limit(o):
    del main_container(node(o))["resources"]["limits"]


def forgotten_volume(o):
    pod(node(o))["volumes"].pop()


def file_outside_mounts(o):
    container = main_container(controller(o))
    replace_argument(container, "/etc/tessera/tls/tls.key", "/etc/tessera/keys/tls.key")


def budget_that_daemons_have_not(o):
    spec = of_kind(o, "PodDisruptionBudget", "tessera-node")["spec"]
    del spec["minAvailable"]
    spec["maxUnavailable"] = 1


def budget_that_blocks(o):
    spec = of_kind(o, "PodDisruptionBudget", "tessera-controller")["spec"]
    del spec["maxUnavailable"]
    spec["minAvailable"] = 1


def joins_nobody(o):
    container = main_container(node(o))
    replace_argument(container, "tessera-controller-0.tessera-controllers:8004", "controller:8004")


def controllers_without_etcd(o):
    controller(o)["spec"]["replicas"] = 3


def killed_too_soon(o):
    pod(node(o))["terminationGracePeriodSeconds"] = 30


# Needs nothing but the objects.
BREAKAGES: list[Callable[[list[dict]], None]] = [
    unknown_field,
    number_as_text,
    removed_api,
    two_alike,
    no_namespace,
    pods_without_label,
    service_of_nobody,
    budget_of_nobody,
    policy_for_nobody,
    service_with_other_port,
    service_with_other_number,
    listens_elsewhere,
    controller_listens_elsewhere,
    metrics_elsewhere,
    probe_of_nothing,
    probe_of_a_socket,
    probe_without_tls,
    no_readiness,
    image_without_tag,
    runs_as_root,
    keeps_capabilities,
    no_account,
    no_limit,
    forgotten_volume,
    file_outside_mounts,
    budget_that_daemons_have_not,
    budget_that_blocks,
    joins_nobody,
    controllers_without_etcd,
    killed_too_soon,
]


def wrong_secret(o):
    main_container(controller(o))["env"][-1]["valueFrom"]["secretKeyRef"]["key"] = "root"


def unknown_flag(o):
    replace_argument(main_container(node(o)), "--gateway", "--gate")


def flag_without_value(o):
    main_container(controller(o))["args"].append("--deadline")


def flag_in_script(o):
    init = pod(node(o))["initContainers"][-1]
    init["args"][0] = init["args"][0].replace("--life", "--lifetime")


# Need to know the Secrets; need to know a binary.
SECRET_BREAKAGES = [wrong_secret]
FLAG_BREAKAGES = [unknown_flag, flag_without_value, flag_in_script]
