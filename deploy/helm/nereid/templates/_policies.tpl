{{/* The pods of one component, as a peer. */}}
{{- define "nereid.peer" -}}
{podSelector: {matchLabels: {{ include "nereid.selectorLabels" . | fromYaml | toJson }}}}
{{- end -}}

{{- define "nereid.metricsIngress" -}}
- ports: [{port: 8002, protocol: TCP}]
{{- with .Values.networkPolicy.metrics }}
  from: {{ toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* root; component: whose own spans go out as well. */}}
{{- define "nereid.commonEgress" -}}
# Names.
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- with .root.Values.networkPolicy.tracingEgress }}
{{ toYaml . }}
{{- else }}
{{- include "nereid.portsEgress" (include "nereid.tracingPorts" .) }}
{{- end }}
{{- with .root.Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What ports, separated by blanks, let out: a NetworkPolicy knows no names, so to any address. */}}
{{- define "nereid.portsEgress" -}}
{{- $ports := list -}}
{{- range splitList " " . | uniq -}}
{{- if . -}}{{- $ports = append $ports (dict "port" (int .) "protocol" "TCP") -}}{{- end -}}
{{- end -}}
{{- with $ports }}
- ports: {{ toJson . }}
{{- end }}
{{- end -}}

{{/* The port of a URL, or of host:port, and a blank; nothing for one of the pod itself. */}}
{{- define "nereid.urlPort" -}}
{{- $authority := regexReplaceAll "^([a-z]+://)?([^/@]*@)?([^/]*).*$" . "${3}" -}}
{{- $port := regexFind ":[0-9]+$" $authority | trimPrefix ":" -}}
{{- $host := $authority | trimSuffix (printf ":%s" $port) -}}
{{- if not (or (has $host (list "localhost" "[::1]")) (hasPrefix "127." $host)) -}}
{{- $port | default (ternary "80" "443" (hasPrefix "http://" .)) }} {{ end -}}
{{- end -}}

{{/* Of all that --trace-config and OpenTelemetry's variables name. */}}
{{- define "nereid.tracingPorts" -}}
{{- $values := index .root.Values .component -}}
{{- $parts := list $values -}}
{{- if eq .component "executor" -}}{{- $parts = include "nereid.classes" .root | fromYaml | values -}}{{- end -}}
{{- $configs := .root.Values.tracing -}}
{{- range $part := $parts -}}
{{- range $part.extraArgs -}}
{{- if hasPrefix "--trace-config=" . -}}{{- $configs = append $configs (trimPrefix "--trace-config=" .) -}}{{- end -}}
{{- end -}}
{{- range $part.extraEnv -}}
{{- if and .value (has .name (list "OTEL_EXPORTER_OTLP_ENDPOINT" "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) -}}
{{- include "nereid.urlPort" .value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $configs -}}
{{- if hasPrefix "opentelemetry,url=" . -}}{{- include "nereid.urlPort" (trimPrefix "opentelemetry,url=" .) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of schedulers and executors: to the stores that the locations name, or where their environment sends them. */}}
{{- define "nereid.repositoryEgress" -}}
{{- with .Values.networkPolicy.repositoryEgress }}
{{ toYaml . }}
{{- else }}
{{- $ports := "" }}
{{- $identities := list }}
{{- range .Values.modelRepository.locations }}
{{- if hasPrefix "s3://" . }}
{{- $place := trimPrefix "s3://" . }}
{{- $ports = print $ports (ternary (include "nereid.urlPort" $place) "443 " (regexMatch "^(https?://|[^/]+:[0-9]+(/|$))" $place)) }}
{{- /* EKS Pod Identity. */}}
{{- $identities = append $identities (dict "cidr" "169.254.170.23/32" "ports" (list 80)) }}
{{- else if hasPrefix "gs://" . }}
{{- $ports = print $ports "443 " }}
{{- /* GKE's metadata server, with and without Dataplane V2. */}}
{{- $identities = concat $identities (list (dict "cidr" "169.254.169.254/32" "ports" (list 80)) (dict "cidr" "169.254.169.252/32" "ports" (list 988))) }}
{{- else if contains "://" . }}
{{- $ports = print $ports "443 " }}
{{- end }}
{{- end }}
{{- if $ports }}
{{- $env := concat .Values.modelRepository.env .Values.scheduler.extraEnv }}
{{- range include "nereid.classes" . | fromYaml }}{{ $env = concat $env .extraEnv }}{{ end }}
{{- range $env }}
{{- if and .value (regexMatch "^(AWS_ENDPOINT_URL(_S3|_STS)?|STORAGE_EMULATOR_HOST|(?i:https?_proxy|all_proxy))$" .name) }}
{{- $ports = print $ports (include "nereid.urlPort" .value) }}
{{- else if and (eq .name "AZURE_STORAGE_AUTH_TYPE") (eq (.value | default "") "managed_identity") }}
{{- $identities = append $identities (dict "cidr" "169.254.169.254/32" "ports" (list 80)) }}
{{- end }}
{{- end }}
{{- end }}
{{- include "nereid.portsEgress" $ports }}
{{- range uniq $identities }}
- to: [{ipBlock: {cidr: {{ .cidr }}}}]
  ports: [{{ range .ports }}{port: {{ . }}, protocol: TCP}{{ end }}]
{{- end }}
{{- end }}
{{- end -}}

{{/* root, component, name, ingress and egress in YAML; without them nothing gets in, or out. */}}
{{- define "nereid.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .name }}
  labels: {{ include "nereid.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{ include "nereid.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- with .ingress }}
  ingress: {{ . | nindent 4 }}
{{- end }}
{{- with .egress }}
  egress: {{ . | nindent 4 }}
{{- end }}
{{- end -}}
