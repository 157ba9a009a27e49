{{/* What the schema cannot say. Each message begins with the value that is wrong. */}}
{{- define "nereid.errors" -}}
{{- $values := .Values -}}
{{- $repository := $values.modelRepository -}}
{{- $full := include "nereid.fullname" . -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $full) }}
fullnameOverride: Services cannot be named {{ $full }}, after the release; give letters, digits and "-", a letter first
{{- end -}}
{{- $components := dict "gateway" $values.gateway "scheduler" $values.scheduler -}}
{{- range $class, $executor := include "nereid.classes" . | fromYaml -}}{{- $_ := set $components (printf "executor.classes.%s" $class) $executor -}}{{- end -}}
{{- if $values.cache.enabled -}}{{- $_ := set $components "cache" $values.cache -}}{{- end -}}
{{- if include "nereid.ownRedis" . -}}{{- $_ := set $components "redis" $values.redis -}}{{- end -}}
{{- if ne $values.images.pullPolicy "Never" -}}
{{- $unfound := list -}}
{{- range $name, $component := $components -}}
{{- if not (contains "/" (include "nereid.image" (dict "root" $ "image" $component.image))) -}}
{{- $unfound = append $unfound (printf "%s (%s)" $component.image.repository $name) -}}
{{- end -}}
{{- end -}}
{{- with $unfound }}
images.registry: is empty, so that {{ join ", " . }} would be looked for in Docker Hub's library; name yours, such as registry.example/ml. For images that are on the nodes already: images.pullPolicy: Never
{{- end -}}
{{- end -}}
{{- range $location := $repository.locations -}}
{{- if hasPrefix "/" $location -}}
{{- $mounted := false -}}
{{- range $repository.volumes -}}
{{- if or (eq $location .mountPath) (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $location) -}}{{- $mounted = true -}}{{- end -}}
{{- end -}}
{{- if not $mounted }}
modelRepository.volumes: nothing is mounted at {{ $location }}; say where the models are, such as [{mountPath: {{ $location }}, source: {persistentVolumeClaim: {claimName: models}}}]
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $repository.loadModels (ne $repository.controlMode "explicit") }}
modelRepository.loadModels: needs modelRepository.controlMode: explicit
{{- end -}}
{{- $lazy := $repository.lazyLoading -}}
{{- if and $lazy.enabled (ne (int $values.scheduler.replicas) 1) }}
scheduler.replicas: modelRepository.lazyLoading needs one scheduler, 1
{{- end -}}
{{- if and $lazy.memoryBudget (not $lazy.enabled) }}
modelRepository.lazyLoading.memoryBudget: needs modelRepository.lazyLoading.enabled: true
{{- end -}}
{{- $state := $values.scheduler.state -}}
{{- if and (eq $repository.controlMode "explicit") (eq $state.store "none") (gt (int $values.scheduler.replicas) 1) }}
scheduler.state.store: with controlMode: explicit and several schedulers, one that takes over has to know what the others have loaded; set it to redis or volume
{{- end -}}
{{- if and (eq $state.store "redis") (gt (len (include "nereid.stateName" .)) 64) }}
scheduler.state.name: {{ include "nereid.stateName" . }} has more than 64 characters; give one that nothing else in that Redis has
{{- end -}}
{{- if and (eq $state.store "volume") (not $state.claimName) }}
scheduler.state.claimName: names the claim for store: volume, which all schedulers can write (ReadWriteMany)
{{- end -}}
{{- if eq $state.store "redis" -}}
{{- if not (and $values.cache.enabled (eq $values.cache.store "redis")) }}
scheduler.state.store: redis needs cache.enabled: true and cache.store: redis, whose Redis it uses
{{- else if and (include "nereid.ownRedis" .) (not $values.redis.persistence.enabled) }}
scheduler.state.store: the chart's own Redis keeps it only with redis.persistence.enabled: true
{{- end -}}
{{- end -}}
{{- if and (include "nereid.ownRedis" .) $values.redis.persistence.enabled (not $values.cache.ttlSeconds) }}
cache.ttlSeconds: with redis.persistence.enabled only responses with a time to live are evicted; set one, such as 86400
{{- end -}}
{{- if and (eq $values.cache.store "local") (gt (int $values.cache.replicas) 1) }}
cache.replicas: caches in memory do not share their responses; set 1, or cache.store: redis
{{- end -}}
{{- $service := $values.gateway.service -}}
{{- if and $service.externalTrafficPolicy (eq $service.type "ClusterIP") }}
gateway.service.externalTrafficPolicy: needs gateway.service.type: LoadBalancer or NodePort
{{- end -}}
{{- if and $service.loadBalancerSourceRanges (ne $service.type "LoadBalancer") }}
gateway.service.loadBalancerSourceRanges: needs gateway.service.type: LoadBalancer
{{- end -}}
{{- if and $service.loadBalancerClass (ne $service.type "LoadBalancer") }}
gateway.service.loadBalancerClass: needs gateway.service.type: LoadBalancer
{{- end -}}
{{- if eq (int $service.httpPort) (int $service.grpcPort) }}
gateway.service.grpcPort: is gateway.service.httpPort as well
{{- end -}}
{{- $tls := $values.gateway.tls -}}
{{- if and (or $tls.http $tls.grpc) (not $tls.secretName) }}
gateway.tls.secretName: names the Secret with the certificate that gateway.tls.http and grpc serve
{{- end -}}
{{- if and $tls.clientCertificates (not (or $tls.http $tls.grpc)) }}
gateway.tls.clientCertificates: needs gateway.tls.http or gateway.tls.grpc
{{- end -}}
{{- if and $values.gateway.auth.existingSecret $values.gateway.auth.config }}
gateway.auth: existingSecret and config exclude each other
{{- end -}}
{{- $roles := list "gateway" "scheduler" "executor" -}}
{{- if $values.cache.enabled -}}{{- $roles = append $roles "cache" -}}{{- end -}}
{{- if eq $values.mesh.tls.mode "secrets" -}}
{{- range $roles -}}
{{- if not (index $values.mesh.tls.secrets .) }}
mesh.tls.secrets.{{ . }}: names the Secret with its certificate, for mesh.tls.mode: secrets
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (include "nereid.classes" . | fromYaml) }}
executor.classes: no class is enabled; nothing would run models
{{- end -}}
{{- range $class, $executor := include "nereid.classes" . | fromYaml -}}
{{- if and (ne $executor.gpus "none") (not $executor.accelerator.resource) }}
executor.classes.{{ $class }}.accelerator.resource: the class offers GPUs; name the resource that its pods get, such as nvidia.com/gpu
{{- end -}}
{{- if and (ne $executor.gpus "none") $lazy.enabled (not $lazy.memoryBudget) }}
modelRepository.lazyLoading.memoryBudget: executor.classes.{{ $class }} has GPUs, whose memory the chart does not know; say how much of it models may take, such as [cpu=16GiB, gpu=20GiB]
{{- end -}}
{{- if le (int $executor.progressDeadlineSeconds) (int $executor.minReadySeconds) }}
executor.classes.{{ $class }}.progressDeadlineSeconds: has to be more than minReadySeconds
{{- end -}}
{{- end -}}
{{- $backend := $values.gatewayApi.backendTLS -}}
{{- if $backend.enabled -}}
{{- if not (or $tls.http $tls.grpc) }}
gatewayApi.backendTLS.enabled: needs gateway.tls.http or gateway.tls.grpc
{{- end -}}
{{- if not $backend.hostname }}
gatewayApi.backendTLS.hostname: names the host of the certificate in gateway.tls.secretName
{{- end -}}
{{- if eq (empty $backend.caCertificateRefs) (empty $backend.wellKnownCACertificates) }}
gatewayApi.backendTLS.caCertificateRefs: give these, such as [{group: "", kind: ConfigMap, name: ca}], or wellKnownCACertificates: System, and not both
{{- end -}}
{{- end -}}
{{- range $kind := list "http" "grpc" -}}
{{- $routes := index $values.gatewayApi $kind -}}
{{- if and $routes.enabled (not $routes.parentRefs) }}
gatewayApi.{{ $kind }}.parentRefs: names the Gateway that the route belongs to
{{- end -}}
{{- end -}}
{{- range $kind, $ingress := $values.ingress -}}
{{- if and $ingress.enabled (not $ingress.hosts) }}
ingress.{{ $kind }}.hosts: names the hosts of the Ingress
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The enabled classes of executors with their defaults, by name; null: there is no such class. */}}
{{- define "nereid.classes" -}}
{{- $classes := dict -}}
{{- range $name, $class := .Values.executor.classes -}}
{{- if not (kindIs "invalid" $class) -}}
{{- $merged := mustMergeOverwrite (deepCopy $.Values.executor.defaults) (deepCopy $class) -}}
{{- if $merged.enabled -}}{{- $_ := set $classes $name $merged -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $classes -}}
{{- end -}}
