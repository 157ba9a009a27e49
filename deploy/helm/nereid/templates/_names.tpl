{{- define "nereid.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that what is appended to it stays within the 63 of a label. */}}
{{- define "nereid.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "nereid.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "nereid.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of a component's pods, for good: a workload's selector cannot be changed. */}}
{{- define "nereid.selectorLabels" -}}
app.kubernetes.io/name: {{ include "nereid.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .class }}
nereid/class: {{ . }}
{{- end }}
{{- end -}}

{{/* Of pods: none that an upgrade of the chart changes, which would restart what is the same as before. */}}
{{- define "nereid.podLabels" -}}
{{ include "nereid.selectorLabels" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of an object. root; component and class where it belongs to one. */}}
{{- define "nereid.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "nereid.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "nereid.serviceAccountName" -}}
{{- $account := .Values.serviceAccount -}}
{{- $account.name | default (ternary (include "nereid.fullname" .) "default" $account.create) -}}
{{- end -}}

{{- define "nereid.image" -}}
{{- $image := .image -}}
{{- $repository := $image.repository -}}
{{- with .root.Values.images.registry -}}{{- $repository = printf "%s/%s" . $repository -}}{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .root.Values.images.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "nereid.schedulers" -}}
{{ include "nereid.fullname" . }}-schedulers
{{- end -}}

{{/*
Each scheduler is dialled on its own, as nothing that distributes connections may lie between. One that loads lazily is no
member of a mesh with several.
*/}}
{{- define "nereid.schedulerAddress" -}}
{{- $service := printf "%s.%s.svc:8003" (include "nereid.schedulers" .) .Release.Namespace -}}
{{- if .Values.modelRepository.lazyLoading.enabled -}}
{{ include "nereid.fullname" . }}-scheduler-0.{{ $service }}
{{- else -}}
dns:{{ $service }}
{{- end -}}
{{- end -}}

{{- define "nereid.tokenSecret" -}}
{{- .Values.mesh.token.existingSecret | default (printf "%s-mesh-token" (include "nereid.fullname" .)) -}}
{{- end -}}

{{- define "nereid.meshServerName" -}}
{{- .Values.mesh.tls.serverName | default (printf "mesh.%s.%s.svc" (include "nereid.fullname" .) .Release.Namespace) -}}
{{- end -}}

{{- define "nereid.tlsSecret" -}}
{{- $tls := .root.Values.mesh.tls -}}
{{- if eq $tls.mode "secrets" -}}
{{- index $tls.secrets .component -}}
{{- else -}}
{{- printf "%s-%s-tls" (include "nereid.fullname" .root) .component -}}
{{- end -}}
{{- end -}}

{{- define "nereid.stateName" -}}
{{- .Values.scheduler.state.name | default (printf "%s.%s" .Release.Namespace (include "nereid.fullname" .)) -}}
{{- end -}}

{{- define "nereid.ownRedis" -}}
{{- if and .Values.cache.enabled (eq .Values.cache.store "redis") (not .Values.redis.external.host) }}true{{ end -}}
{{- end -}}

{{- define "nereid.redisSecret" -}}
{{- $own := include "nereid.ownRedis" . -}}
{{- .Values.redis.existingSecret | default (ternary (printf "%s-redis" (include "nereid.fullname" .)) "" (eq $own "true")) -}}
{{- end -}}
