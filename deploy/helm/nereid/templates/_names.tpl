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

{{/* Of a component's pods: root, component, class, values. */}}
{{- define "nereid.serviceAccountName" -}}
{{- $all := .root.Values.serviceAccount -}}
{{- $own := .values.serviceAccount -}}
{{- if $own.name -}}
{{- $own.name -}}
{{- else if $all.name -}}
{{- $all.name -}}
{{- else if include "nereid.makesAccount" . -}}
{{- list (include "nereid.fullname" .root) .component .class | compact | join "-" -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- define "nereid.makesAccount" -}}
{{- $own := .values.serviceAccount.create -}}
{{- if ternary .root.Values.serviceAccount.create $own (kindIs "invalid" $own) }}true{{ end -}}
{{- end -}}

{{/* Without a registry and a slash it would be one of Docker Hub's own; nereid.errors refuses that. */}}
{{- define "nereid.image" -}}
{{- $image := .image -}}
{{- $registry := include "nereid.registry" . -}}
{{- $repository := list $registry $image.repository | compact | join "/" -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .root.Values.images.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "nereid.registry" -}}
{{- $global := .root.Values.global | default dict -}}
{{- coalesce $global.imageRegistry .image.registry .root.Values.images.registry | default "" | trimSuffix "/" -}}
{{- end -}}

{{/* Of a Service: none of these where the cluster's default is meant. */}}
{{- define "nereid.ipFamilies" -}}
{{- with .Values.services.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.services.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
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
