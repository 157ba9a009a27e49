{{/* What every container may do: nothing. */}}
{{- define "nereid.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* user, group, fsGroup, of which null ones are left out. */}}
{{- define "nereid.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- range $key, $value := dict "runAsUser" .user "runAsGroup" .group "fsGroup" .fsGroup }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }}: {{ int64 $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of a component of the mesh: each has a user of its own. */}}
{{- define "nereid.componentSecurity" -}}
{{- $security := .root.Values.podSecurity -}}
{{- $user := index ($security.users | default dict) .component -}}
{{- include "nereid.podSecurity" (dict "user" $user "group" $security.runAsGroup "fsGroup" $security.fsGroup) -}}
{{- end -}}

{{/* Where a pod may run. values; selector: the labels to spread by. */}}
{{- define "nereid.placement" -}}
{{- $v := .values -}}
{{- with $v.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $v.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- if kindIs "invalid" $v.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: {{ $.selector | fromYaml | toJson }}}
{{- end }}
{{- else if $v.topologySpreadConstraints }}
topologySpreadConstraints: {{ toYaml $v.topologySpreadConstraints | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A component's values of DNS. */}}
{{- define "nereid.dns" -}}
{{- with .dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .dnsConfig }}
dnsConfig: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The values' settings of a probe, and the chart's own where they say nothing. */}}
{{- define "nereid.probe" -}}
{{- toYaml (mergeOverwrite (index . 1) (index . 0)) -}}
{{- end -}}

{{/* The flags that all services have. */}}
{{- define "nereid.commonArgs" -}}
{{- $values := .root.Values -}}
- --metrics-port=8002
- {{ printf "--metrics-address=%s" $values.bindAddress | quote }}
- --log-format={{ $values.logging.format }}
- --log-verbose={{ $values.logging.verbose }}
- --mesh-token-file=/run/nereid/mesh/token
{{- if ne $values.mesh.tls.mode "none" }}
- --mesh-tls-cert=/run/nereid/tls/tls.crt
- --mesh-tls-key=/run/nereid/tls/tls.key
- --mesh-tls-root=/run/nereid/tls/ca.crt
- --mesh-tls-server-name={{ include "nereid.meshServerName" .root }}
{{- end }}
{{- if $values.hardened }}
- --hardened=true
{{- end }}
{{- range $values.tracing }}
- {{ printf "--trace-config=%s" . | quote }}
{{- end }}
{{- end -}}

{{/*
A pod of one of the mesh's services.
  root, component, class: of whom; class for executors alone
  values: of the component
  args: its flags beside the common ones, in YAML
  ports, env, volumes, mounts: beside the common ones, in YAML
  tokenRole: whose token it gets; none: the mesh's own
  grace: terminationGracePeriodSeconds; preStop: seconds before SIGTERM
  readinessFailures: of 2 s each; livenessFailures: of 10 s each
*/}}
{{- define "nereid.podTemplate" -}}
{{- $root := .root -}}
{{- $v := .values -}}
{{- $selector := include "nereid.selectorLabels" . -}}
{{- $image := include "nereid.image" (dict "root" $root "image" $v.image) -}}
{{- $roleSecret := "" -}}
{{- if .tokenRole -}}{{- $roleSecret = index $root.Values.mesh.token.roleSecrets .component -}}{{- end -}}
{{- $derived := and .tokenRole (not $roleSecret) -}}
metadata:
  labels: {{ include "nereid.podLabels" . | nindent 4 }}
{{- with $v.podLabels }}
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- if or $v.podAnnotations .annotations $root.Values.monitoring.scrapeAnnotations }}
  annotations:
{{- with .annotations }}
    {{- . | nindent 4 }}
{{- end }}
{{- if $root.Values.monitoring.scrapeAnnotations }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "8002"
    prometheus.io/path: /metrics
{{- end }}
{{- with $v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}
spec:
  serviceAccountName: {{ include "nereid.serviceAccountName" . }}
  automountServiceAccountToken: {{ $v.serviceAccount.automount }}
  # Variables such as NEREID_HTTP_PORT, which a Service may cause, are the flags' own.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .grace }}
  securityContext: {{ include "nereid.componentSecurity" . | nindent 4 }}
{{- with $root.Values.images.pullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
{{- end }}
{{- include "nereid.placement" (dict "values" $v "selector" $selector) | trim | nindent 2 }}
{{- with include "nereid.dns" $v | trim }}
  {{- . | nindent 2 }}
{{- end }}
{{- if or $derived $v.initContainers }}
  initContainers:
{{- end }}
{{- if $derived }}
    # The mesh's own token is mounted here alone.
    - name: token
      image: {{ $image | quote }}
      imagePullPolicy: {{ $root.Values.images.pullPolicy }}
      command: [nereid, mesh-token, --mesh-token-file=/run/nereid/mesh-own/token, --role={{ .tokenRole }}, --output=/run/nereid/mesh/token]
      securityContext: {{ include "nereid.containerSecurity" $root | nindent 8 }}
      resources:
        requests: {cpu: 100m, memory: 64Mi}
        limits: {cpu: "1", memory: 256Mi}
      volumeMounts:
        - {name: mesh-token, mountPath: /run/nereid/mesh-own, readOnly: true}
        - {name: role-token, mountPath: /run/nereid/mesh}
{{- end }}
{{- with $v.initContainers }}
    {{- toYaml . | nindent 4 }}
{{- end }}
  containers:
    - name: {{ .component }}
      image: {{ $image | quote }}
      imagePullPolicy: {{ $root.Values.images.pullPolicy }}
      args:
        {{- .args | trim | nindent 8 }}
        {{- include "nereid.commonArgs" . | nindent 8 }}
{{- with $v.extraArgs }}
        {{- toYaml . | nindent 8 }}
{{- end }}
{{- with compact (list (.env | default "") (ternary (toYaml $v.extraEnv) "" (not (empty $v.extraEnv)))) }}
      env:
{{- range . }}
        {{- . | nindent 8 }}
{{- end }}
{{- end }}
{{- with compact (list (.envFrom | default "") (ternary (toYaml $v.extraEnvFrom) "" (not (empty $v.extraEnvFrom)))) }}
      envFrom:
{{- range . }}
        {{- . | nindent 8 }}
{{- end }}
{{- end }}
      ports:
{{- with .ports }}
        {{- . | nindent 8 }}
{{- end }}
        - {name: metrics, containerPort: 8002}
      # Every service has these paths at its metrics port, without credentials and TLS.
      startupProbe: {{ include "nereid.probe" (list $v.probes.startup (dict
          "httpGet" (dict "path" "/v2/health/live" "port" "metrics")
          "periodSeconds" 1 "timeoutSeconds" 3 "failureThreshold" (int $v.startupSeconds))) | nindent 8 }}
      readinessProbe: {{ include "nereid.probe" (list $v.probes.readiness (dict
          "httpGet" (dict "path" (.readinessPath | default "/v2/health/ready") "port" "metrics")
          "periodSeconds" 2 "timeoutSeconds" 3 "failureThreshold" (.readinessFailures | default 2))) | nindent 8 }}
      livenessProbe: {{ include "nereid.probe" (list $v.probes.liveness (dict
          "httpGet" (dict "path" "/v2/health/live" "port" "metrics")
          "periodSeconds" 10 "timeoutSeconds" 5 "failureThreshold" (.livenessFailures | default 3))) | nindent 8 }}
{{- with .preStop }}
      lifecycle:
        preStop: {exec: {command: [python, -P, -c, "import time; time.sleep({{ . }})"]}}
{{- end }}
      securityContext: {{ include "nereid.containerSecurity" $root | nindent 8 }}
      resources: {{ include "nereid.resources" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: {{ ternary "role-token" "mesh-token" (not (empty $derived)) }}, mountPath: /run/nereid/mesh, readOnly: true}
{{- if ne $root.Values.mesh.tls.mode "none" }}
        - {name: mesh-tls, mountPath: /run/nereid/tls, readOnly: true}
{{- end }}
{{- with trim (.mounts | default "") }}
        {{- . | trim | nindent 8 }}
{{- end }}
{{- with $v.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
{{- end }}
{{- with $v.sidecars }}
    {{- toYaml . | nindent 4 }}
{{- end }}
  volumes:
    - {name: tmp, emptyDir: {sizeLimit: {{ $v.temporarySize }}}}
    - name: mesh-token
      secret: {secretName: {{ $roleSecret | default (include "nereid.tokenSecret" $root) }}, defaultMode: 0440, items: [{key: token, path: token}]}
{{- if $derived }}
    - {name: role-token, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
{{- end }}
{{- if ne $root.Values.mesh.tls.mode "none" }}
    - {name: mesh-tls, secret: {secretName: {{ include "nereid.tlsSecret" . }}, defaultMode: 0440}}
{{- end }}
{{- with trim (.volumes | default "") }}
    {{- . | trim | nindent 4 }}
{{- end }}
{{- with $v.extraVolumes }}
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Of a Deployment. Values are merged, so that another type comes with what the default one takes. */}}
{{- define "nereid.strategy" -}}
{{- toYaml (ternary . (omit . "rollingUpdate") (eq .type "RollingUpdate")) -}}
{{- end -}}

{{/* Its own, and the accelerator of an executor's class, whose request and limit are one. */}}
{{- define "nereid.resources" -}}
{{- $resources := deepCopy .values.resources -}}
{{- $accelerator := .values.accelerator | default dict -}}
{{- if $accelerator.resource -}}
{{- $_ := set $resources "limits" (merge (dict $accelerator.resource (printf "%d" (int $accelerator.count))) $resources.limits) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* "true" if a repository is in an object store. */}}
{{- define "nereid.copiesRepository" -}}
{{- range .Values.modelRepository.locations -}}{{- if contains "://" . -}}true{{- end -}}{{- end -}}
{{- end -}}

{{/*
How much an executor may keep of what it copies: nine tenths of the volume, whose pod is evicted once it is full. The rest
is for blocks that files do not fill, and for downloads of several executors at a time.
*/}}
{{- define "nereid.repositoryCacheBytes" -}}
{{- include "nereid.partOfSize" (list 0.9 .Values.modelRepository.cache.size) -}}
{{- end -}}

{{/* In bytes: a part of a quantity. */}}
{{- define "nereid.partOfSize" -}}
{{- $size := index . 1 | toString -}}
{{- $factors := dict "m" 0.001 "" 1 "k" 1000 "Ki" 1024 "M" 1000000 "Mi" 1048576 "G" 1000000000 "Gi" 1073741824 "T" 1000000000000 "Ti" 1099511627776 -}}
{{- mulf (regexFind "^[0-9.]+" $size | float64) (get $factors (regexFind "[A-Za-z]*$" $size)) (index . 0) | floor | int64 -}}
{{- end -}}

{{/* What models that are loaded lazily may take of each executor's memory, where the values do not say: the flag is one for all classes. */}}
{{- define "nereid.cpuBudget" -}}
{{- $parts := list -}}
{{- range include "nereid.classes" . | fromYaml -}}
{{- $parts = append $parts (include "nereid.partOfSize" (list 0.5 .resources.limits.memory) | int64) -}}
{{- end -}}
{{- $least := first $parts -}}
{{- range $parts -}}{{- $least = min $least . -}}{{- end -}}
cpu={{ $least }}
{{- end -}}

{{/* Of schedulers and executors. */}}
{{- define "nereid.repositoryEnv" -}}
{{- with .Values.modelRepository.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Of a volume: name, source. Another kind of source makes it another volume: server-side apply would leave the former's
defaults (a hostPath's type), and so a volume with two sources, which no API server accepts.
*/}}
{{- define "nereid.volumeName" -}}
{{ .name }}-{{ keys .source | first | lower }}
{{- end -}}

{{/* The model repository, where schedulers and executors see it. */}}
{{- define "nereid.repositoryVolumes" -}}
{{- range $index, $volume := .Values.modelRepository.volumes }}
- name: {{ include "nereid.volumeName" (dict "name" (printf "models-%d" $index) "source" $volume.source) }}
  {{- toYaml $volume.source | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "nereid.repositoryMounts" -}}
{{- range $index, $volume := .Values.modelRepository.volumes }}
- name: {{ include "nereid.volumeName" (dict "name" (printf "models-%d" $index) "source" $volume.source) }}
  mountPath: {{ $volume.mountPath }}
  readOnly: {{ ne $volume.readOnly false }}
{{- with $volume.subPath }}
  subPath: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "nereid.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{ include "nereid.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{ include "nereid.selectorLabels" . | nindent 6 }}
{{- end -}}
