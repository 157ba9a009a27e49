"""Values that users of the chart set, by their purpose."""

from __future__ import annotations

from typing import Any, Final

import yaml

from tests.support.pages import blocks

_MODELS: Final = {
    "volumes": [
        {"mountPath": "/models", "source": {"persistentVolumeClaim": {"claimName": "models"}}}
    ]
}
_IMAGES: Final = {"registry": "registry.example"}
AUTH_CONFIG: Final = f"""
[[keys]]
name = "web"
sha256 = "{"0" * 64}"
rights = ["inference"]
"""
_GATEWAY: Final = {"parentRefs": [{"name": "edge", "namespace": "gateways"}]}


def _with_models(**values: Any) -> dict[str, Any]:
    return {
        "images": _IMAGES,
        **values,
        "modelRepository": {**_MODELS, **values.get("modelRepository", {})},
    }


def _recipe() -> Any:
    """The values that docs/recipes/kubernetes-s3.md has its readers copy."""
    (text,) = [text for language, text in blocks("kubernetes-s3") if language == "yaml"]
    return yaml.safe_load(text)


def _sidecar(name: str, volume: str = "tmp") -> dict[str, Any]:
    """A container of a platform's own, by the same rules as the chart's."""
    amount = {"cpu": "10m", "memory": "16Mi"}
    return {
        "name": name,
        "image": "registry.example/sidecar:1",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": amount, "limits": amount},
        "volumeMounts": [{"name": volume, "mountPath": "/tmp"}],
    }


VALUE_SETS: Final[dict[str, dict[str, Any]]] = {
    "least": _with_models(),
    "accelerators": _with_models(
        executor={
            "classes": {
                "cpu": {"enabled": False},
                "gpu": {
                    "enabled": True,
                    "replicas": 3,
                    "runtimeClassName": "nvidia",
                    "strategy": {"type": "Recreate"},
                },
                "two-gpus": {
                    "image": {"repository": "nereid-executor-gpu"},
                    "gpus": "0,1",
                    "accelerator": {"resource": "nvidia.com/gpu", "count": 2},
                    "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
                },
                "mig-1g-10gb": {
                    "image": {"repository": "nereid-executor-gpu"},
                    "gpus": "all",
                    "accelerator": {"resource": "nvidia.com/mig-1g.10gb"},
                    "nodeSelector": {"nvidia.com/mig.config": "all-1g.10gb"},
                    "replicas": None,
                },
            }
        }
    ),
    "explicit control, state in Redis": _with_models(
        modelRepository={"controlMode": "explicit", "loadModels": ["resnet", "it's: one"]},
        scheduler={"state": {"store": "redis"}},
        cache={"ttlSeconds": 86400},
        redis={"persistence": {"enabled": True, "storageClassName": "fast"}},
    ),
    "explicit control, state on a volume": _with_models(
        modelRepository={"controlMode": "explicit"},
        scheduler={
            "replicas": 3,
            "state": {"store": "volume", "claimName": "state", "name": "one"},
        },
    ),
    "polled volumes": {
        "images": _IMAGES,
        "modelRepository": {
            "locations": ["/models", "/nfs/team a/models"],
            "controlMode": "poll",
            "pollSeconds": 2.5,
            "volumes": [
                {"mountPath": "/models", "source": {"hostPath": {"path": "/srv/models"}}},
                {
                    "mountPath": "/nfs/",
                    "subPath": "shared",
                    "readOnly": False,
                    "source": {"nfs": {"server": "10.0.0.9", "path": "/exports"}},
                },
            ],
            "strictReadiness": False,
        },
    },
    "autoscaled by queue time": _with_models(
        autoscaling={"mode": "hpa", "executor": {"classes": {"cpu": {"maxReplicas": 20}}}},
    ),
    "scaled to zero": _with_models(
        executor={"classes": {"gpu": {"enabled": True}}},
        autoscaling={
            "mode": "keda",
            "executor": {
                "classes": {
                    "cpu": {"maxReplicas": 3},
                    "gpu": {"minReplicas": 0, "devices": ["gpu"], "models": ["a.b", "c"]},
                }
            },
        },
    ),
    "loaded lazily": _with_models(
        modelRepository={"lazyLoading": {"enabled": True}},
        scheduler={"replicas": 1},
        mesh={"tls": {"mode": "certManager"}},
    ),
    "loaded lazily on GPUs": _with_models(
        modelRepository={
            "lazyLoading": {"enabled": True, "memoryBudget": ["cpu=16GiB", "gpu=20GiB"]}
        },
        scheduler={"replicas": 1},
        executor={"classes": {"gpu": {"enabled": True}}},
    ),
    "object store": {
        "images": _IMAGES,
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/m"}},
        "modelRepository": {
            "locations": ["s3://bucket/models"],
            "cache": {"size": "20Gi"},
            "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
            "envFrom": [{"secretRef": {"name": "bucket"}}],
        },
        "networkPolicy": {"repositoryEgress": [{"ports": [{"port": 443}]}]},
    },
    "the recipe for S3": _recipe(),
    "mTLS by cert-manager": _with_models(mesh={"tls": {"mode": "certManager"}}),
    "mTLS by the company's issuer": _with_models(
        mesh={
            "tls": {
                "mode": "certManager",
                "certManager": {"issuerRef": {"name": "vault", "kind": "ClusterIssuer"}},
            }
        },
        cache={"enabled": False},
    ),
    "given secrets": _with_models(
        mesh={
            "token": {
                "existingSecret": "token",
                "roleSecrets": {"gateway": "gateway-token", "executor": "executor-token"},
            },
            "tls": {
                "mode": "secrets",
                "secrets": {
                    role: f"{role}-tls" for role in ("gateway", "scheduler", "executor", "cache")
                },
                "serverName": "mesh.example",
            },
        },
        redis={"existingSecret": "redis"},
    ),
    "clients' TLS and keys": _with_models(
        gateway={
            "tls": {"secretName": "edge", "http": True, "grpc": True, "clientCertificates": True},
            "auth": {"config": AUTH_CONFIG},
        }
    ),
    "somebody else's Redis": _with_models(
        redis={
            "existingSecret": "elasticache",
            "external": {
                "host": "redis.example",
                "port": 6380,
                "user": "nereid",
                "tls": True,
                "caSecret": "redis-ca",
                "options": ["db=2"],
            },
        },
        cache={"replicas": 2},
    ),
    "cache in memory": _with_models(cache={"store": "local", "localSizeBytes": 8 << 30}),
    "hardened on IPv6": _with_models(
        hardened=True,
        bindAddress="::",
        cache={"enabled": False},
        scheduler={"replicas": 1},
        tracing=["mode=opentelemetry", "opentelemetry,url=http://collector:4317", "rate=100"],
        networkPolicy={
            "clients": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}],
            "metrics": [{"namespaceSelector": {"matchLabels": {"team": "operators"}}}],
            "extraEgress": [{"ports": [{"port": 5353, "protocol": "UDP"}]}],
        },
    ),
    "everybody's way in": _with_models(
        gateway={
            "service": {
                "type": "LoadBalancer",
                "httpPort": 80,
                "grpcPort": 81,
                "annotations": {"a.example/b": "c"},
                "loadBalancerSourceRanges": ["192.0.2.0/24"],
                "externalTrafficPolicy": "Local",
                "headless": False,
            },
            "replicas": None,
        },
        ingress={
            "http": {
                "enabled": True,
                "className": "nginx",
                "hosts": ["models.example", "*.models.example"],
                "tls": [{"hosts": ["models.example"], "secretName": "edge"}],
            },
            "grpc": {
                "enabled": True,
                "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "GRPC"},
                "hosts": ["grpc.example"],
            },
        },
        gatewayApi={
            "http": {"enabled": True, "hostnames": ["models.example"], **_GATEWAY},
            "grpc": {"enabled": True, **_GATEWAY},
        },
    ),
    "watched": _with_models(
        monitoring={
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True},
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Nereid"}},
            "scrapeAnnotations": True,
        }
    ),
    "a strict platform": _with_models(
        fullnameOverride="a-name-that-is-longer-than-what-would-fit-in-all-labels",
        commonLabels={"team": "ml"},
        podSecurity={"users": None, "runAsGroup": None, "fsGroup": None},
        redis={"runAsUser": None, "podLabels": {"sidecar": "no"}, "podAnnotations": {"x": "y"}},
        serviceAccount={"create": False, "name": "given"},
        networkPolicy={"enabled": False},
        images={
            "registry": "registry.example/ml/",
            "tag": "1.2.3",
            "pullSecrets": [{"name": "registry"}],
        },
        gateway={
            "image": {"digest": "sha256:" + "0" * 64},
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [],
            "priorityClassName": "high",
            "podAnnotations": {"sidecar.istio.io/inject": "false"},
            "podLabels": {"stage": "production"},
            "extraArgs": ["--max-connections=100"],
            "extraEnv": [{"name": "NEREID_LOG_INFO", "value": "false"}],
            "extraEnvFrom": [{"configMapRef": {"name": "more"}}],
            "extraVolumes": [{"name": "extra", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        },
    ),
    "buckets of all kinds, traced": {
        "images": _IMAGES,
        "modelRepository": {
            "locations": [
                "gs://bucket/models",
                "as://account/container",
                "s3://minio.storage:9000/bucket",
                "s3://https://store.example:8443/bucket/models",
                "s3://bucket/models",
            ],
            "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
            "cache": {"source": {"hostPath": {"path": "/srv/nereid"}}, "subPath": "demo"},
        },
        "tracing": [
            "mode=opentelemetry",
            "opentelemetry,url=http://collector.tracing:4317",
            "opentelemetry,resource=a=b",
        ],
        "scheduler": {
            "serviceAccount": {"annotations": {"iam.gke.io/gcp-service-account": "reader@p.iam"}}
        },
        "executor": {
            "defaults": {
                "serviceAccount": {"annotations": {"iam.gke.io/gcp-service-account": "all@p.iam"}}
            },
            "classes": {
                "cpu": {},
                "vision": {
                    "serviceAccount": {"create": False, "name": "vision"},
                    "extraEnv": [
                        {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "https://otel.example"}
                    ],
                },
            },
        },
    },
    "dual-stack with sidecars": _with_models(
        services={"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4"]},
        bindAddress="::",
        gateway={
            "service": {"type": "LoadBalancer", "loadBalancerClass": "service.k8s.aws/nlb"},
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
            "probes": {"readiness": {"periodSeconds": 1, "failureThreshold": 9}},
            "serviceAccount": {"name": "edge", "automount": True},
            "sidecars": [_sidecar("proxy")],
        },
        scheduler={
            "state": {"store": "volume", "claimName": "state", "subPath": "nereid"},
            "initContainers": [_sidecar("wait")],
        },
        executor={
            "defaults": {
                "initContainers": [_sidecar("agent")],
                "dnsPolicy": "None",
                "dnsConfig": {"nameservers": ["fd00::a"]},
            }
        },
        cache={"ttlSeconds": 3600, "sidecars": [_sidecar("exporter")]},
        redis={
            "persistence": {"enabled": True, "subPath": "redis", "storageClassName": "fast"},
            "probes": {"startup": {"failureThreshold": 600}},
            "sidecars": [_sidecar("exporter", volume="data")],
            "initContainers": [_sidecar("wait", volume="data")],
            "dnsPolicy": "Default",
        },
    ),
    "a mirror, and TLS behind the Gateway": _with_models(
        **{"global": {"imageRegistry": "mirror.example/all/"}},
        gateway={"tls": {"secretName": "edge", "grpc": True}},
        gatewayApi={
            "grpc": {"enabled": True, **_GATEWAY},
            "backendTLS": {
                "enabled": True,
                "hostname": "models.example",
                "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}],
            },
        },
        extraObjects=[
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "{{ .Release.Name }}-more"},
                "data": {"a": "b"},
            },
            (
                "apiVersion: v1\nkind: ConfigMap\nmetadata:\n"
                '  name: {{ include "nereid.fullname" . }}-text\ndata: {port: "{{ 8000 }}"}\n'
            ),
        ],
    ),
    "one account for all": _with_models(
        serviceAccount={"name": "models", "annotations": {"azure.workload.identity/client-id": "1"}}
    ),
    "images on the nodes": _with_models(images={"pullPolicy": "Never"}),
}
